package gateway

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Bounds of netstack's buffers of a gateway's TCP connections, in bytes.
const (
	bufferMost  = 1 << 20  // of a connection, each way
	bufferLeast = 64 << 10 // guaranteed to a connection, each way
	bufferAll   = 256 << 20
	// bufferSpare are the bytes that connections share for buffers above bufferLeast.
	bufferSpare = bufferAll - 2*bufferLeast*(maxTCP+maxDNSConns) - bufferLeast*maxUnfinished
)

// Bounds of the receive buffers of datagram flows' sockets, as values of SO_RCVBUF in bytes, as far as
// net.core.rmem_max allows. The kernel doubles the value (socket(7)).
const (
	flowBuffer = 2 << 20  // of a socket
	flowLeast  = 64 << 10 // guaranteed to each of the first two sockets of a flow
	flowAll    = 256 << 20
	// flowSpare are the bytes that flows share for buffers above flowLeast, and for more than two sockets of a
	// flow.
	flowSpare = flowAll - 2*flowLeast*maxUDP
)

// budget divides a number of bytes for buffers among owners (quota.go): ports of the switch, as a rule. An owner may
// take bytes until it has one part in n+1, if n owners have some then, itself included. It keeps what it has taken
// when other owners come.
type budget struct {
	most, least int // of a buffer
	spare       int

	mu   sync.Mutex
	left int
	by   map[owner]int // no zeros
}

func newBudget(most, least, spare int) *budget {
	return &budget{most: most, least: least, spare: spare, left: spare, by: map[owner]int{}}
}

type buffers struct {
	b     *budget
	owner owner
	size  int // of each buffer
	held  int // bytes taken from the budget
}

// sizeOf returns the greatest size of a buffer for a connection or flow. n is how many of them its owner has, this one
// included.
func (b *budget) sizeOf(n int) int {
	size := b.most
	for ; n > 7 && size > b.least; n /= 2 {
		size /= 2
	}
	return size
}

// take takes buffers for a connection or flow of o; their number is count. All have one size: sizeOf(n), halved until
// the owner's share has room, or the least size.
func (b *budget) take(o owner, n, count int) *buffers {
	b.mu.Lock()
	defer b.mu.Unlock()
	share, size := b.share(o), b.sizeOf(n)
	for size > b.least && count*(size-b.least) > share {
		size /= 2
	}
	f := &buffers{b: b, owner: o, size: size}
	f.give(-count * (size - b.least))
	return f
}

// more takes one buffer beyond take's, all of it from the owner's share; nil: the share lacks room for the least size.
func (b *budget) more(o owner, n int) *buffers {
	b.mu.Lock()
	defer b.mu.Unlock()
	share, size := b.share(o), b.sizeOf(n)
	for size > share {
		if size /= 2; size < b.least {
			return nil
		}
	}
	f := &buffers{b: b, owner: o, size: size}
	f.give(-size)
	return f
}

// share returns how many bytes an owner may still take. The caller holds mu.
func (b *budget) share(o owner) int {
	owners := len(b.by) + 1
	if b.by[o] == 0 {
		owners++
	}
	return min(b.left, b.spare/owners-b.by[o])
}

func (f *buffers) set(ep tcpip.Endpoint) {
	o := ep.SocketOptions()
	o.SetSendBufferSize(int64(f.size), true)
	o.SetReceiveBufferSize(int64(f.size), true)
}

func (f *buffers) received() {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.give(f.held / 2)
}

// free gives all bytes back to the budget.
func (f *buffers) free() {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.give(f.held)
}

// give returns n bytes to the budget, or takes -n. The caller holds the budget's mu.
func (f *buffers) give(n int) {
	f.held -= n
	f.b.left += n
	if f.b.by[f.owner] -= n; f.b.by[f.owner] == 0 {
		delete(f.b.by, f.owner)
	}
}
