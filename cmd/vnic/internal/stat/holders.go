package stat

import (
	"context"
	"net/netip"
	"sync"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

// askHolders asks all guests at once. There is an entry for each port whose guest has answered.
func askHolders(ports []Port, name func(i int) string) map[string][]devmem.Holder {
	ctx, cancel := context.WithTimeout(context.Background(), limits.Tokens.Here())
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	said := map[string][]devmem.Holder{}
	for i := range ports {
		ask := ports[i].Holders
		if ask == nil {
			continue
		}
		wg.Go(func() {
			if list, known := ask(ctx); known {
				mu.Lock()
				said[name(i)] = list
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return said
}

// held says how many tokens a connection's receiver holds, at those of its ports whose guest has answered.
func (f *Flow) held(said map[string][]devmem.Holder) {
	for i := range f.RX {
		s := &f.RX[i]
		list, known := said[s.Port]
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
