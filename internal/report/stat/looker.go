package stat

import (
	"sync"
	"time"

	"vnic.dev/vnic/internal/lab"
)

// A buffer counts as held if a queue had posted it and data has come since, so what a queue posts must be seen before
// data comes: after a driver has set something up, its port's rings are looked at, looks times, with lookPause between,
// whatever the driver does.
const (
	looks     = 5
	lookPause = 20 * time.Millisecond
)

// looker looks at the rings of ports that ask for it, each port on a goroutine of its own, until stop.
type looker struct {
	maps *gpuMaps
	end  chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	left    map[*lab.Port]int // how often to look at ports that have a goroutine; under mu
	stopped bool
}

// ask makes the looker look at a port. It waits for nothing that holds a lock of a NIC.
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

// next counts a look at a port, if one is left.
func (k *looker) next(p *lab.Port) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left[p]--; k.left[p] < 0 {
		delete(k.left, p)
		return false
	}
	return true
}
