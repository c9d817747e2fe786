// Package shape makes links as slow as they are said to be: each direction of a link, and each memory, is an Edge with a
// rate, and a Route is the edges that a packet takes, with what each of them carries of it.
//
// There is one formula, in real time:
//
//	start   = max(now - credit, free of each edge)
//	free    = max(free, start) + bytes of the edge / its rate
//
// A packet may pass when no edge of its route is taken, and takes all of them. Whoever comes late, as a thread that
// slept until then does, is given the time that it lost, but Credit at most (two packets, where these take longer): so
// a rate is kept on a busy machine, and no burst is longer than that. Nothing here waits: Ready says when to ask again.
//
// Edges are free of locks. Of several that ask at the same time all may pass, and the edge is taken for as long as they
// all need: bytes over time is the rate, whoever sends. Cost: a read of the clock a batch, and for each packet a load and
// a compare-and-swap an edge; a Route has 16 edges or so. A route without edges, and a Clock that is off, cost a load.
//
// With a scale of n everything takes n times as long as its rate says: rates are divided, so that an emulator that moves
// a thousandth of what hardware does has a thousandth of its links.
//
// The package is not API (README, Stability).
package shape
