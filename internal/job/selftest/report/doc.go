// Package report prints the results of selftest runs: as a table for people, as JSON, as JUnit XML
// for CI, and several runs side by side.
//
// Text from a guest is clean already (package ktap): it cannot control a terminal or break XML.
package report
