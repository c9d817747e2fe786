// Package invariants makes docs/invariants.md of the comments above tests: what holds, and which tests hold
// it; "go test ./internal/invariants -update" writes it.
//
// An invariant is a part of the doc comment of a test, or of a case of package nictest, that begins with the
// mark:
//
//	// Invariant: virtq: A bad chain stops its queue, and another queue goes on moving bytes.
//	func TestBadChainStopsItsQueue(t *testing.T) {
//
// Between the colons stands the area, behind them a sentence, which ends before an empty line or the next
// mark. In a shell script the mark stands in a comment.
package invariants
