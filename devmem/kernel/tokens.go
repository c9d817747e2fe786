package kernel

import (
	"sync"

	"vnic.dev/vnic/devmem"
)

// tokens records the tokens below maxTrack that the kernel has issued for a connection, until they are returned. The
// kernel issues the lowest free number, from 1 (net/ipv4/tcp.c:tcp_xa_pool_refill).
type tokens struct {
	mu   sync.Mutex
	held []*binding // by token; nil: not issued, or returned
}

// foreignBinding stands for receive bindings that the Device does not have, as of other programs.
var foreignBinding = &binding{}

// maxTrack bounds held: tokens from it on are not recorded.
const maxTrack = 1 << 26

func (t *tokens) issued(d *Device, frags []devmem.Frag) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range frags {
		if f.Kind != devmem.Dmabuf || f.Token >= maxTrack {
			continue
		}
		for uint32(len(t.held)) <= f.Token {
			t.held = append(t.held, nil)
		}
		b := d.rxBinding(f.Binding)
		t.held[f.Token] = b
		b.held.Add(1)
	}
}

// returned records that tokens are returned, up to devmem.MaxFrags of them. It must be called before dontNeed: the
// kernel may issue a freed token again at once.
func (t *tokens) returned(ranges []devmem.TokenRange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, r := range ranges {
		for i := uint32(0); i < r.Count; i++ {
			if n++; n > devmem.MaxFrags {
				return
			}
			if k := r.Start + i; k < uint32(len(t.held)) && t.held[k] != nil {
				t.held[k].held.Add(-1)
				t.held[k] = nil
			}
		}
	}
}

func (t *tokens) release(fd int) {
	t.mu.Lock()
	var list devmem.Tokens
	for i, b := range t.held {
		if b != nil {
			list.Add(uint32(i))
		}
	}
	t.mu.Unlock()
	for ranges := range list.Calls() {
		if _, err := dontNeed(fd, ranges); err != nil {
			return // the kernel frees the others with the socket
		}
	}
}

func (t *tokens) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.held {
		if b != nil {
			b.held.Add(-1)
		}
	}
	t.held = nil
}
