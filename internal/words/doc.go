// Package words tests that names, comments and pages of this repository use plain words.
package words
