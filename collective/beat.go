package collective

import (
	"errors"
	"time"

	"vnic.dev/vnic/devmem"
)

// Each rank sends heartbeats, of a byte, to the rank before it. A heartbeat and its acknowledgment are progress
// of a connection (devmem.Conn, SetStallLimit): when a rank is gone and the others wait for payload, only its
// neighbours see no progress.

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

func (r *Ring) hear() {
	b := make([]byte, 256)
	for {
		if _, err := r.out.Read(b); err != nil && !stalled(err) {
			return // an operation's send reports the error
		}
	}
}

func stalled(err error) bool {
	s := (*devmem.StallError)(nil)
	return errors.As(err, &s)
}
