// Package labfile reads lab files: descriptions in YAML of everything that vnic emulates: guests
// with their PCIe trees, NICs and GPUs, and the links between them. Presets are lab files embedded
// in the program.
//
// An error of Parse is an *Error, with the line and column if it has a place, and with a suggestion for
// a misspelt word. A file has at most MaxSize bytes, MaxLine bytes a line, MaxTokens words and punctuation
// marks, and MaxNodes YAML nodes after aliases are expanded: the YAML library's time grows with the
// square of some of these numbers. Within the bounds, reading a file takes less than half a second.
//
// The package is not API (README, Stability).
package labfile
