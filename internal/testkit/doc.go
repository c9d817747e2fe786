// Package testkit has helpers for the tests of several packages. It imports only small packages, so that any
// package's tests may use it.
package testkit
