// Package labfile reads lab files: descriptions in YAML of all that is emulated, guests with their PCIe trees, NICs and
// GPUs, and the links between them. Presets are lab files inside the program.
//
// An error of Parse is an *Error: what is wrong, at which line and column, and what was probably meant. A file has at
// most MaxSize bytes, MaxLine a line, MaxTokens words and signs, and MaxNodes parts when its aliases are written out:
// the YAML library's time grows with the square of some of them, and reading a file takes less than half a second.
//
// The package is not API (README, Stability).
package labfile
