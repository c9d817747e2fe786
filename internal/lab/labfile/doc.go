// Package labfile reads lab files: descriptions in YAML of guests with their PCIe trees, NICs and GPUs, and
// of the links between them. Presets are lab files embedded in the program.
//
// An error of Parse is an *Error. Files are bounded by MaxSize, MaxLine, MaxTokens and MaxNodes, because the
// YAML library's time grows with the square of some of them.
//
// The package is not API (README, Stability).
package labfile
