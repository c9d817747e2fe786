// Package invariants makes docs/invariants.md of the comments that stand above tests: what holds,
// and which tests hold it. Its test fails when the document is not what the comments say; "go test
// ./internal/invariants -update" writes it.
//
// An invariant is a part of the doc comment of a test, or of a case of package nictest, that begins with the mark:
//
//	// Invariant: virtq: A bad chain stops its queue, and another queue goes on moving bytes.
//	func TestBadChainStopsItsQueue(t *testing.T) {
//
// Between the colons stands the area, behind them a sentence, which ends before an empty line or the
// next mark. The document lists tests with the same area and sentence below one sentence. In a shell
// script "# Invariant: ..." does the same for the script.
package invariants
