package collective

import (
	"errors"
	"time"

	"vnic.dev/vnic/devmem"
)

// Payload goes to the next rank alone, so a rank whose neighbour is gone and one whose neighbour waits for such a rank
// look the same: nothing comes. Heartbeats tell them apart. From when it has come each rank sends a byte to the rank
// before it, against the way of payload, eight times in Timeout. Its acknowledgment says that the rank before is there,
// and its arrival says so of the next rank: both are progress of a connection (devmem.Conn, SetStallLimit), so that
// only the neighbours of a rank that is gone see none.

// beat sends heartbeats.
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
			return // who receives from it sees why
		}
		r.beats.Add(1)
	}
}

// hear takes the heartbeats of the next rank, until the connection ends. They come in host memory: no rule steers them.
func (r *Ring) hear() {
	b := make([]byte, 256)
	for {
		if _, err := r.out.Read(b); err != nil && !stalled(err) {
			return // who sends on it sees why
		}
	}
}

// stalled says that a connection made no progress, which matters in an operation only.
func stalled(err error) bool {
	s := (*devmem.StallError)(nil)
	return errors.As(err, &s)
}
