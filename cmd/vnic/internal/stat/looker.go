package stat

import (
	"sync"
	"time"

	"vnic.dev/vnic/internal/lab"
)

// What a queue has posted is to be known before data comes, or nothing tells that it is held afterwards: soon after a
// driver has set something up, its port's rings are looked at, looks times. A port's are so at most once in lookPause,
// whatever its driver does.
const (
	looks     = 5
	lookPause = 20 * time.Millisecond
)

// looker looks at the rings of ports that ask for it, on a goroutine of its own, until stop.
type looker struct {
	maps *gpuMaps
	kick chan struct{}
	end  chan struct{}
	wg   sync.WaitGroup

	mu   sync.Mutex
	left map[*lab.Port]int // looks; under mu
}

func newLooker(m *gpuMaps) *looker {
	k := &looker{maps: m, kick: make(chan struct{}, 1), end: make(chan struct{}), left: map[*lab.Port]int{}}
	k.wg.Go(k.run)
	return k
}

// ask has a port looked at. It waits for nothing that holds a lock of a NIC.
func (k *looker) ask(p *lab.Port) {
	k.mu.Lock()
	k.left[p] = looks
	k.mu.Unlock()
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

func (k *looker) stop() {
	close(k.end)
	k.wg.Wait()
}

func (k *looker) run() {
	for {
		select {
		case <-k.end:
			return
		case <-k.kick:
		}
		for ports := k.next(); len(ports) > 0; ports = k.next() {
			for _, p := range ports {
				k.maps.look(p)
			}
			select {
			case <-k.end:
				return
			case <-time.After(lookPause):
			}
		}
	}
}

// next gives the ports that are to be looked at now.
func (k *looker) next() (ports []*lab.Port) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p, n := range k.left {
		ports = append(ports, p)
		if k.left[p]--; n == 1 {
			delete(k.left, p)
		}
	}
	return ports
}
