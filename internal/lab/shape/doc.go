// Package shape limits links to their rates: each direction of a link, and each memory, is an Edge
// with a rate. A Route is the edges that a packet takes, with the number of its bytes that each of
// them carries.
//
// Each edge follows one formula, in real time:
//
//	start = max(free, now - credit)
//	free  = start + bytes of the edge / its rate
//
// A packet reserves all edges of its route when it arrives, and may pass at the latest of their
// starts. A thread that slept and wakes late gets the lost time back, up to Credit (or two packets,
// if those take longer): so an edge keeps its rate on a busy machine, and no burst exceeds the
// credit. Edges do not wait for one another, and a packet's requests do not wait for other packets'
// payload: otherwise two transfers that cross the same two edges, one of them with few bytes, would
// delay each other. Nothing here sleeps: Take returns the time until which to wait. A sender
// reserves edges for one packet at a time, so that senders which share an edge take turns.
//
// Edges use no locks. Cost: one read of the clock per batch, and per packet a load and a
// compare-and-swap for each edge; a Route has about 16 edges. A route without edges, and a Clock
// that is off, cost one load.
//
// With a scale of n everything takes n times as long. So an emulator that moves a thousandth of the
// bytes that hardware moves uses a scale of 1000, and its links have a thousandth of the rate.
//
// The package is not API (README, Stability).
package shape
