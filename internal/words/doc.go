// Package words tests that names and comments of this repository use plain words.
package words
