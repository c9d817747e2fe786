package stat

import (
	"sync"
	"time"

	"vnic.dev/vnic/internal/lab"
)

// The looker must read a ring before received data uses up the ring's buffers (gpuMaps): after ask it reads a port's
// rings looks times, lookPause apart.
const (
	looks     = 5
	lookPause = 20 * time.Millisecond
)

// looker reads the rings of ports for which ask was called, until stop.
type looker struct {
	maps *gpuMaps
	end  chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	left    map[*lab.Port]int // under mu: how many more times to read the rings of each port
	stopped bool
}

// ask makes a goroutine of the looker read a port's rings, unless stop was called. ask takes no lock of a NIC: its
// callers may hold one.
func (k *looker) ask(p *lab.Port) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, running := k.left[p]
	k.left[p] = looks
	if !running && !k.stopped {
		k.wg.Go(func() { k.run(p) })
	}
}

func (k *looker) stop() {
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	close(k.end)
	k.wg.Wait()
}

func (k *looker) run(p *lab.Port) {
	for k.next(p) {
		k.maps.look(p)
		select {
		case <-k.end:
			return
		case <-time.After(lookPause):
		}
	}
}

// next counts down the readings of a port that are left, and reports whether one was left.
func (k *looker) next(p *lab.Port) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left[p]--; k.left[p] < 0 {
		delete(k.left, p)
		return false
	}
	return true
}
