package collective

import (
	"errors"
	"time"

	"vnic.dev/vnic/devmem"
)

// A rank sends payload only to the next rank, which cannot tell a rank that is gone from one that waits for
// another rank. So each rank sends heartbeats, of a byte, to the rank before it: the byte and its
// acknowledgment are progress of their connection (devmem.Conn, SetStallLimit), so that only neighbours of a
// rank that is gone see none.

// beat sends heartbeats until the Ring is closed or the connection fails.
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

// hear reads the heartbeats of the next rank until the connection ends.
func (r *Ring) hear() {
	b := make([]byte, 256)
	for {
		if _, err := r.out.Read(b); err != nil && !stalled(err) {
			return // an operation's send reports the error
		}
	}
}

// stalled reports whether err says that a connection made no progress.
func stalled(err error) bool {
	s := (*devmem.StallError)(nil)
	return errors.As(err, &s)
}
