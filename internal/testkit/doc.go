// Package testkit is what tests of several packages share: that a test, or all of a package's, leaves no
// goroutine and no descriptor; socket pairs, memory files, and waiting for what no channel tells of.
//
// It knows nothing of ours but small things below every package, so that any package's tests may use it.
package testkit
