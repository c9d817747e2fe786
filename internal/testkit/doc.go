// Package testkit has helpers for tests. It imports only small packages, so that any package's tests may use
// it.
package testkit
