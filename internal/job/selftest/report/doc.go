// Package report prints the results of selftest runs: as a table, as JSON, as JUnit XML for CI, and several
// runs side by side.
//
// The package prints text from a guest as it is: the text in package results' types is clean.
package report
