package collective

import (
	"errors"
	"time"

	"vnic.dev/vnic/devmem"
)

// A rank sends payload only to the next rank, so a rank that is gone, and a rank that waits for a
// rank that is gone, look the same to the next rank: no payload comes. Heartbeats tell them apart.
// Each rank sends a byte to the rank before it, against the direction of payload, about eight times
// in Timeout. The byte shows the rank before that this rank is there; its acknowledgment shows this
// rank that the rank before is there. Both are progress of a connection (devmem.Conn,
// SetStallLimit), so that only the neighbours of a rank that is gone see no progress.

// beat sends heartbeats to the rank before, until the Ring is closed or the connection fails.
func (r *Ring) beat() {
	t := time.NewTicker(max(r.c.Timeout/8, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-r.left:
			return
		case <-t.C:
		}
		if _, err := r.in.Write([]byte{0}); err != nil && !stalled(err) {
			return // an operation's receive reports the error
		}
		r.beats.Add(1)
	}
}

// hear reads the heartbeats of the next rank, until the connection ends. They come in host memory:
// no rule steers them.
func (r *Ring) hear() {
	b := make([]byte, 256)
	for {
		if _, err := r.out.Read(b); err != nil && !stalled(err) {
			return // an operation's send reports the error
		}
	}
}

// stalled reports whether err says that a connection made no progress. beat and hear ignore that.
func stalled(err error) bool {
	s := (*devmem.StallError)(nil)
	return errors.As(err, &s)
}
