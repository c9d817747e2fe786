// Package shape makes links as slow as they are said to be: each direction of a link, and each memory, is an Edge
// with a rate, and a Route is the edges that a packet takes, with what each of them carries of it.
//
// There is one formula for each edge, in real time:
//
//	start = max(free, now - credit)
//	free  = start + bytes of the edge / its rate
//
// A packet takes all edges of its route as it comes, and may pass at the latest start of them. Whoever comes late, as
// a thread that slept until then does, is given the time that the edge lost, but Credit at most (two packets, where
// these take longer): so a rate is kept on a busy machine, and no burst is longer than that. Edges do not wait for
// one another, nor do requests for others' payload: else two transfers that cross the same two, one of them with
// little more than requests, would hold each other up. Nothing here waits: Take says until when to wait. A sender
// takes edges for one packet at a time, so that several that cross an edge go in turn.
//
// Edges are free of locks. Cost: a read of the clock a batch, and for each packet a load and a compare-and-swap an
// edge; a Route has 16 edges or so. A route without edges, and a Clock that is off, cost a load.
//
// With a scale of n everything takes n times as long as its rate says: rates are divided, so that an emulator that
// moves a thousandth of what hardware does has a thousandth of its links.
//
// The package is not API (README, Stability).
package shape
