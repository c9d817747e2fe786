// Package shape limits links to their rates: each direction of a link, and each memory, is an Edge. A Route
// is the edges that a packet takes, with the bytes that each of them carries.
//
// Each edge follows one formula, in real time:
//
//	start = max(free, now - credit)
//	free  = start + scale * bytes on the edge / its rate
//
// A packet reserves the edges of its route when it arrives, and may pass at the latest of their starts; the start of
// an edge that it needs for a short time, as for requests, counts as earlier by the credit. A thread that wakes late
// gets the lost time back, up to the credit: Credit, or twice the packet's longest time on an edge if that is more.
// Edges do not wait for one another, and requests hardly wait for payload: otherwise two transfers over the same two
// edges would delay each other. Take does not sleep: it returns the time until which to wait.
//
// Edges use no locks. A packet costs an atomic add, a load and a compare-and-swap for each edge, unless another
// thread interferes.
//
// With a scale of n packets need n times as long; with scale 0 they do not wait, and reserve nothing.
//
// The package is not API (README, Stability).
package shape
