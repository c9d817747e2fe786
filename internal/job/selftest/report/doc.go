// Package report shows what a run of selftests came to: as a table for people, as JSON, as JUnit's
// XML for CI, and several runs side by side.
//
// What is shown of a guest is clean text already (package ktap): nothing of it can steer a terminal
// or break XML.
package report
