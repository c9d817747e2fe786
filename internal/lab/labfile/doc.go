// Package labfile reads and writes lab files: descriptions in YAML of guests with their PCIe trees, NICs and
// GPUs, of the NICs' links to the switch, of its uplinks, and of changes while the lab runs. Presets are lab files
// embedded in the program.
//
// An error of Parse is an *Error. Files are bounded by MaxSize, MaxLine, MaxTokens and MaxNodes, and in the
// nesting of values, because the YAML library's time grows with the square of some of these.
//
// The package is not API (README, Stability).
package labfile
