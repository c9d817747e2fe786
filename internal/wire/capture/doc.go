// Package capture writes what passes a switch's ports to a pcapng file (draft-ietf-opsawg-pcapng),
// for tshark and the like.
//
// Each port is two interfaces, NAME-tx and NAME-rx as its guest sees them: what it sent, whatever
// became of it, and what came for it. So a frame between two ports is there twice, on its way up
// and on its way down: to see one side of a connection, filter by one port. With Options.Once it is there once, as it
// was sent, and its comment says what became of it at each port that had it in that moment. Headers are
// always there, payload as far as asked for, read from where it lies, GPU memory included. A
// comment on each packet says where its payload lay or went to, and what became of it.
//
// A GSO packet is one frame, with the lengths in its headers those of the whole; its comment says
// how many segments it stands for. Checksums are as they pass: a partial one is not complete yet.
//
// Capture never holds traffic up. A Tap fills a record in a bounded ring, without locks and without
// allocating; one goroutine writes them. What finds no room is not captured, and counted: in Stats,
// and in the file. After a write error nothing more is captured, and traffic goes on.
package capture
