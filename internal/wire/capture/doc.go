// Package capture writes the packets of a switch's ports to a pcapng file (draft-ietf-opsawg-pcapng).
//
// Each port is two interfaces, NAME-tx and NAME-rx: packets that its guest sent, whatever their fate, and
// packets that came for it. A frame between two captured ports is in the file twice. With Options.Once a frame
// that no link delays is in the file once, as it was sent, and its comment has its fate at the ports that
// received it. Headers are captured, and payload as far as configured; both are read in place, in GPU memory
// too. A comment on each packet has the place of its payload, and its fate.
//
// A GSO packet is one frame, with the lengths of the whole packet in its headers; its comment has the number of
// segments. Checksums are captured as they pass: a partial one is incomplete.
//
// A Tap fills a record in a bounded ring, without locks and without allocating; one goroutine writes the
// records. Packets that find no room are not captured, but counted: in Stats, and in the file. After a write
// error nothing more is captured, and traffic goes on.
package capture
