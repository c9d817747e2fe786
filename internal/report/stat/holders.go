package stat

import (
	"context"
	"net/netip"
	"sync"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

// askHolders asks the guests at the same time which of their connections hold tokens; its context gives them
// limits.Tokens.Here(). The result has the answers by port's name, without guests that have not answered.
func askHolders(ports []Port, name func(i int) string) map[string][]devmem.Holder {
	ctx, cancel := context.WithTimeout(context.Background(), limits.Tokens.Here())
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	holders := map[string][]devmem.Holder{}
	for i := range ports {
		ask := ports[i].Holders
		if ask == nil {
			continue
		}
		wg.Go(func() {
			if list, known := ask(ctx); known {
				mu.Lock()
				holders[name(i)] = list
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return holders
}

// askFunc is askHolders or answers.latest. name returns the name of ports[i].
type askFunc func(ports []Port, name func(i int) string) map[string][]devmem.Holder

// answers has the guests' last answers, by port's name.
type answers struct {
	mu     sync.Mutex
	last   map[string][]devmem.Holder // under mu; nil: none yet, or forgotten
	asking chan struct{}              // under mu: closed when askHolders has returned; nil: no request is under way
}

// latest returns the answers to the last request that has ended, and starts a request to the guests unless one is under
// way. It does not wait for answers.
func (a *answers) latest(ports []Port, name func(i int) string) map[string][]devmem.Holder {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asking == nil {
		done := make(chan struct{})
		a.asking = done
		go func() {
			defer close(done)
			holders := askHolders(ports, name)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.last, a.asking = holders, nil
		}()
	}
	return a.last
}

func (a *answers) forget() {
	a.mu.Lock()
	asking := a.asking
	a.mu.Unlock()
	if asking != nil {
		<-asking
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = nil
}

// held sets FlowSide.Held of a TCP flow at each port that has received payload of it in registered GPU buffers (Device)
// and whose guest has answered.
func (f *Flow) held(holders map[string][]devmem.Holder) {
	for i := range f.RX {
		s := &f.RX[i]
		list, known := holders[s.Port]
		if !known || s.Device == 0 || f.Proto != "tcp" {
			continue
		}
		n := 0
		for _, h := range list {
			if end(h.Local) == f.To && end(h.Remote) == f.From {
				n += h.Tokens
			}
		}
		s.Held = &n
	}
}

func end(a netip.AddrPort) string { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String() }
