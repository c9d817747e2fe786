package gve

import (
	"time"

	"vnic.dev/vnic/dma"
)

// stuckAfter is how often the keeper looks for those who are kept in an interrupt that does not go out.
const stuckAfter = 500 * time.Millisecond

// keeper does what a device does at times: it writes the stats report, and frees those who are stuck in an interrupt.
type keeper struct {
	wake chan struct{} // holds one
	stop chan struct{} // closed by close
	done chan struct{}
}

func newKeeper(d *Device) *keeper {
	k := &keeper{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	d.vectors.Watched(k.poke)
	dma.Go(func() { k.run(d) })
	return k
}

// poke has the keeper look whether there is more to do than before.
func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) close() {
	close(k.stop)
	<-k.done
}

func (k *keeper) run(d *Device) {
	defer close(k.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time
	dozes := false
	for {
		select {
		case <-k.stop:
			return
		case <-k.wake:
		case <-timer.C:
		}
		now := time.Now()
		next := time.Duration(-1)
		if due := d.stats.write(now); !due.IsZero() {
			next = max(0, due.Sub(now))
		}
		switch {
		case dozes && !d.vectors.Dozing(): // somebody has fired: is he stuck in it, a moment from now?
			looked, dozes = now, false
		case !dozes && now.Sub(looked) >= stuckAfter:
			if d.vectors.look() {
				d.log.Error("interrupts that nobody takes: the frontend gets no more until it connects again")
			}
			looked, dozes = now, d.vectors.Doze(d.vectors.firing)
		}
		if !dozes && d.vectors.Open() && (next < 0 || next > stuckAfter) {
			next = stuckAfter
		}
		if next >= 0 {
			timer.Reset(next)
		}
	}
}
