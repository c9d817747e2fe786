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

// Bounds of the sockets of all flows of datagrams, but for those that forwards listen on: in bytes of what they keep
// until it is read (SO_RCVBUF, of which the kernel makes twice as much, socket(7)), as far as net.core.rmem_max allows
// that.
const (
	flowBuffer = 2 << 20  // of a socket, at most
	flowLeast  = 64 << 10 // the same, whatever others have
	flowAll    = 256 << 20
	// flowSpare is what flows share: for larger buffers, and for more sockets than the two that each has.
	flowSpare = flowAll - 2*flowLeast*maxUDP
	// flowSocketsAll is how many sockets there can be, then.
	flowSocketsAll = 2*maxUDP + flowSpare/flowLeast
)

// budget divides a number of bytes for buffers among the ports of the switch. Each of n ports that have some has one
// part in n+1 at most, so that something is left for another port.
type budget struct {
	most, least int // of a buffer
	spare       int // for what is above the least

	mu   sync.Mutex
	left int
	by   map[owner]int // bytes; no zeros
}

func newBudget(most, least, spare int) *budget {
	return &budget{most: most, least: least, spare: spare, left: spare, by: map[owner]int{}}
}

// buffers are those of a connection, or of a socket.
type buffers struct {
	b     *budget
	owner owner
	size  int // of each
	held  int // of the budget
}

// sizeOf is the largest buffer that the n-th connection or flow of a port gets, from 1 on: the more the port has, the
// smaller it is. From the 64th connection on it is the least.
func (b *budget) sizeOf(n int) int {
	size := b.most
	for ; n > 7 && size > b.least; n /= 2 {
		size /= 2
	}
	return size
}

// take gives count buffers of one size for the n-th connection or flow of a port. Where the port's part is used up,
// they have the least size, which is not of the budget.
func (b *budget) take(o owner, n, count int) *buffers {
	b.mu.Lock()
	defer b.mu.Unlock()
	part, size := b.part(o), b.sizeOf(n)
	for size > b.least && count*(size-b.least) > part {
		size /= 2
	}
	f := &buffers{b: b, owner: o, size: size}
	f.give(-count * (size - b.least))
	return f
}

// more gives one buffer beyond those that take gives, all of it of the budget; nil: the port's part is used up.
func (b *budget) more(o owner, n int) *buffers {
	b.mu.Lock()
	defer b.mu.Unlock()
	part, size := b.part(o), b.sizeOf(n)
	for size > part {
		if size /= 2; size < b.least {
			return nil
		}
	}
	f := &buffers{b: b, owner: o, size: size}
	f.give(-size)
	return f
}

// part is what a port may take now. Under mu.
func (b *budget) part(o owner) int {
	owners := len(b.by) + 1
	if b.by[o] == 0 {
		owners++
	}
	return min(b.left, b.spare/owners-b.by[o])
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

// free gives back all. It may be called more than once.
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
