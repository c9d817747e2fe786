package gateway

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Bounds of the buffers of all connections of a gateway, in bytes.
const (
	bufferMost  = 1 << 20  // of a connection, each way
	bufferLeast = 64 << 10 // the same, whatever others have
	bufferAll   = 256 << 20
	// bufferSpare is what connections share above bufferLeast each way, those included that are closed and still have
	// to send what they have.
	bufferSpare = bufferAll - 2*bufferLeast*(maxTCP+maxDNSConns) - bufferLeast*maxUnfinished
)

// budget is what connections share of bufferSpare. Of n ports that have some, each has one in n+1 at the most, so that
// there is something left for one more.
type budget struct {
	mu   sync.Mutex
	left int
	by   map[owner]int // bytes; no zeros
}

// buffers are those of a connection.
type buffers struct {
	b     *budget
	owner owner
	size  int // each way
	held  int // of the budget
}

// bufferOf is the most that the n-th connection of a port has each way, from 1 on: less the more there are, and from
// the 64th on the least.
func bufferOf(n int) int {
	size := bufferMost
	for ; n > 7 && size > bufferLeast; n /= 2 {
		size /= 2
	}
	return size
}

// take gives buffers for the n-th connection of a port, smaller ones where its part does not reach.
func (b *budget) take(o owner, n int) *buffers {
	b.mu.Lock()
	defer b.mu.Unlock()
	owners := len(b.by) + 1
	if b.by[o] == 0 {
		owners++
	}
	part := min(b.left, bufferSpare/owners-b.by[o])
	size := bufferOf(n)
	for size > bufferLeast && 2*(size-bufferLeast) > part {
		size /= 2
	}
	f := &buffers{b: b, owner: o, size: size}
	f.give(-2 * (size - bufferLeast))
	return f
}

// set gives a connection its buffers.
func (f *buffers) set(ep tcpip.Endpoint) {
	o := ep.SocketOptions()
	o.SetSendBufferSize(int64(f.size), true)
	o.SetReceiveBufferSize(int64(f.size), true)
}

// received gives back the part for what a connection receives: it is closed, and only has to send what it has.
func (f *buffers) received() {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.give(f.held / 2)
}

// free gives back all.
func (f *buffers) free() {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.give(f.held)
}

// give gives n bytes back, or takes them. Under the budget's mu.
func (f *buffers) give(n int) {
	f.held -= n
	f.b.left += n
	if f.b.by[f.owner] -= n; f.b.by[f.owner] == 0 {
		delete(f.b.by, f.owner)
	}
}
