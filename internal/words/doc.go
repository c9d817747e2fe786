// Package words has a test that refuses some unclear names in Go code, and some unclear phrases in the comments of Go
// and C code and in pages, unless a list of exceptions allows them.
package words
