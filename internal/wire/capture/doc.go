// Package capture writes the packets of a switch's ports to a pcapng file (draft-ietf-opsawg-pcapng).
//
// Each port is two interfaces, NAME-tx and NAME-rx: packets that the port sent, and packets that came for it. A frame
// that one captured port sends and another receives is in the file twice; with Options.Once, unless a link delays it,
// it is there once, as it was sent. Payload is captured as far as configured, read in place, in GPU memory too. A
// comment on each packet has its fate and the place of its payload, as far as they are known.
//
// A GSO packet is one frame; if the wire cuts it, each received piece is a frame. Checksums are captured as they pass:
// a partial one is incomplete.
//
// A tap (wire.Tap) fills a record in a bounded ring, without locks and without allocating; one goroutine writes the
// records. Packets that find no room are counted, in Stats and in the file. After a write error nothing more is
// captured, and traffic goes on.
package capture
