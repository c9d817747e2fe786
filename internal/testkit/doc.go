// Package testkit has helpers for the tests of several packages: for example checks that a test, or all
// tests of a package, leave no goroutines and no descriptors; socket pairs, memory files, and polling
// for conditions.
//
// It imports only small packages below all others, so that any package's tests may use it.
package testkit
