// Package invariants makes docs/invariants.md of the comments that stand above tests: what holds,
// and which tests hold it. Its test fails when the document is not what the comments say; "go test
// ./internal/invariants -update" writes it.
//
// A comment is a paragraph directly above a function, the last ones of its doc comment:
//
//	// Invariant: virtq: A bad chain stops its queue, and another queue goes on moving bytes.
//	func TestBadChainStopsItsQueue(t *testing.T) {
//
// Between the colons stands the area, behind them a sentence, which may go on in the next lines.
// Tests with the same area and sentence make one row. In a shell script "# Invariant: ..." does the
// same for the script.
package invariants
