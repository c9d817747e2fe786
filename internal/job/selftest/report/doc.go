// Package report prints the results of selftest runs: as a table, as JSON, as JUnit XML for CI, and several
// runs side by side.
//
// Text from a guest is clean already (package ktap).
package report
