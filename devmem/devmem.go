// Package devmem is the API of device memory TCP sockets. Payload is received into and sent from memory that
// the socket's user addresses by (offset, length) and that no CPU needs to read, while headers and the TCP
// state machine stay in the host. Semantics, limits and errno names follow devmem TCP of Linux 7.2
// (SCM_DEVMEM_DMABUF, SO_DEVMEM_DONTNEED, MSG_ZEROCOPY with a dma-buf).
//
// Packages stack, kernel and plain implement it. The device may write to the memory given to [Device.BindRX]
// until the binding is done ([Binding.Done]). Memory passed to [Conn.SendDevmem] must not change until
// [Conn.ReadCompletion] reports the send: TCP may send it again.
//
// The package is API (README, Stability).
package devmem

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// PageSize is the unit of a receive binding: a [Frag] never crosses a page boundary of its buffer.
const PageSize = 4096

// Limits of [Conn.DontNeed], as in net/core/sock.c:sock_devmem_dontneed.
const (
	MaxTokenRanges = 128  // MAX_DONTNEED_TOKENS
	MaxFrags       = 1024 // MAX_DONTNEED_FRAGS
)

// Device is a network device with its network stack. Several goroutines may call its methods at the same time.
type Device interface {
	// Register makes [off, off+size) of GPU gpu a buffer that can be bound. Among the errors are EINVAL (off or size
	// is not a multiple of PageSize, size is 0, or the range is not in the GPU's memory) and ENODEV (no such GPU; in
	// package kernel also no Exporter).
	Register(gpu int, off, size uint64) (Buffer, error)

	// BindRX gives the buffer's pages to receive queues: payload that is steered to these queues lands there. Among
	// the errors are EINVAL (no queue, or one that cannot be bound), ERANGE (queue 0), EEXIST (queue already
	// bound), EBUSY (overlap with another receive binding, which Linux allows), EBADF (buffer closed), ENOSPC (too
	// few pages for the queues, which Linux allows). A call that fails binds no queue.
	BindRX(b Buffer, queues ...int) (Binding, error)

	// BindTX makes the buffer a source of data for SendDevmem.
	BindTX(b Buffer) (Binding, error)

	// AddFlow steers the packets that match f to a queue; rules precede RSS. Among the errors are EINVAL, ENOSPC
	// (rule table full), EEXIST.
	AddFlow(f Flow) (FlowID, error)
	DelFlow(id FlowID) error // ENOENT: no such rule

	// SetRSS spreads packets that match no rule over the first n queues (ethtool -X equal n); in package plain it has
	// no effect.
	SetRSS(n int) error

	// Listen listens on a local address; an unspecified Addr means all addresses of its family, and port 0 any
	// port.
	Listen(local netip.AddrPort) (Listener, error)

	// Dial connects. If local has no address or no port, the stack chooses it.
	Dial(ctx context.Context, local, remote netip.AddrPort) (Conn, error)

	Stats() Stats

	// Close aborts connections, closes bindings and listeners, and waits for the device's goroutines.
	Close() error
}

// Buffer is registered device memory. It may be bound several times, for receive once at a time; Close returns
// EBUSY until its bindings are done.
type Buffer interface {
	GPU() int
	Offset() uint64 // in the GPU
	Size() uint64
	Close() error // idempotent
}

// Binding is a buffer bound for receive or transmit. A successful Close takes effect at once for new packets and sends.
type Binding interface {
	ID() uint32 // never 0
	Close() error
	// Done is closed when the binding is closed and its memory is no longer in use.
	Done() <-chan struct{}
}

// FlowID names a flow rule; 0 names none.
type FlowID uint32

// Flow is a rule: TCP packets that match Src and Dst go to Queue. The zero netip.Addr matches any address, port 0 any
// port, but one address is needed.
type Flow struct {
	Src, Dst netip.AddrPort // as in received packets: Dst is local
	Queue    int
}

// Listener accepts connections.
type Listener interface {
	net.Listener
	AcceptConn() (Conn, error)
}

// Kind is the kind of a fragment's memory.
type Kind uint8

// Kinds of fragments.
const (
	Dmabuf Kind = iota // in device memory, at Off; Token must be returned (SCM_DEVMEM_DMABUF)
	Linear             // copied to the linear buffer, after earlier Linear frags (SCM_DEVMEM_LINEAR)
)

// Frag is a piece of the received stream, in stream order: struct dmabuf_cmsg.
type Frag struct {
	Off     uint64 // from the start of the bound buffer; 0 for Linear
	Size    uint32
	Token   uint32 // 0 for Linear
	Binding uint32 // 0 for Linear
	Kind    Kind
}

// TokenRange is Count tokens from Start: struct dmabuf_token.
type TokenRange struct{ Start, Count uint32 }

// Range is a piece of a buffer, at any alignment.
type Range struct{ Off, Len uint64 }

// RecvFlags modify RecvDevmem.
type RecvFlags uint8

const (
	// Peek leaves the data in the stream (MSG_PEEK). Each peek issues new tokens, which must all be returned.
	Peek RecvFlags = 1 << iota
	// Trunc discards up to len(linear) bytes, unless Peek is set too: RecvDevmem returns only their number n
	// (MSG_TRUNC).
	Trunc
	// DontWait makes RecvDevmem return EAGAIN instead of waiting (MSG_DONTWAIT).
	DontWait
)

// Conn is a TCP connection with device memory on either or both sides. One goroutine may receive while another
// sends and a third reads completions.
//
// Errors of the network stack wrap an errno; after a deadline os.ErrDeadlineExceeded, and after Close
// net.ErrClosed.
type Conn interface {
	// Read reads data in host memory. If the next byte of the stream is in device memory, it returns EFAULT, and
	// RecvDevmem receives the byte.
	//
	// Close releases the connection and its tokens (Linux keeps tokens until the socket is destroyed); as after
	// close(2), unacknowledged data is normally still sent.
	net.Conn

	// CloseWrite sends FIN.
	CloseWrite() error

	// SetLinger is as in net.TCPConn: with 0, Close resets the connection.
	SetLinger(sec int) error

	// RecvDevmem receives up to len(linear) bytes, of both kinds together. It is recvmsg(MSG_SOCK_DEVMEM):
	// len(linear) is the length of the iov, and len(frags) the room for control messages. n counts all received
	// bytes, nlinear the ones copied to linear.
	//
	// A call without Trunc never mixes data of readable packets (nfrags is 0, n == nlinear: the packets came
	// through no bound queue) with data of unreadable packets. Bytes of an unreadable packet that are in host
	// memory are a Linear frag. A Dmabuf frag longer than the remaining room is cut: the next call continues in
	// the same page with another token.
	//
	// Among the errors are ErrTooSmall (no frag fits, nothing is consumed), io.EOF, EAGAIN (DontWait) and
	// ECONNRESET.
	RecvDevmem(frags []Frag, linear []byte, flags RecvFlags) (n, nfrags, nlinear int, err error)

	// DontNeed returns tokens, and reports how many frags it freed. It ignores unknown tokens, and tokens beyond
	// the first MaxFrags of a call. EINVAL: ranges is empty or longer than MaxTokenRanges. After Close, which returns
	// the tokens, it may return 0 and no error.
	DontNeed(ranges []TokenRange) (freed int, err error)

	// SendDevmem sends ranges of a buffer bound for transmit. It waits for room and returns how many bytes it
	// queued. Each call that queued at least one byte gets the next number, from 0, for ReadCompletion. Among the
	// errors are EINVAL (binding unknown, closed or not for transmit, id 0, no ranges, or a range of length 0),
	// EFAULT (the first range is outside the buffer; if a later range is, SendDevmem sends the ranges before it
	// without this error), EPIPE, ECONNRESET. In package kernel ENODEV means that the connection's route does not
	// use the binding's interface.
	SendDevmem(binding uint32, ranges []Range) (n int, err error)

	// ReadCompletion waits until the peer has acknowledged sends and the device no longer uses their memory. It
	// returns their numbers lo to hi, both included. The zero deadline is none; a past deadline does not wait
	// (os.ErrDeadlineExceeded). When the connection has failed, outstanding sends complete before the error is
	// returned.
	ReadCompletion(deadline time.Time) (lo, hi uint32, err error)

	// SetStallLimit makes later calls that wait for this connection fail with a *StallError after d without a byte
	// received or acknowledged. 0 (the default) is no limit. Set a limit only while data is pending. The stack may
	// then probe an idle peer (TCP keepalive).
	SetStallLimit(d time.Duration)

	// State describes the TCP state in one line for people.
	State() string
}

// Stats is a snapshot of a device. A counter that an implementation does not have stays 0.
type Stats struct {
	Queues   []QueueStats
	Bindings []BindingStats

	RxDevmemBytes, RxLinearBytes uint64 // returned by RecvDevmem, by kind; Read counts as linear
	TxDevmemBytes, TxLinearBytes uint64 // accepted by SendDevmem and Write
	RxSegments, TxSegments       uint64
	Retransmits                  uint64
	RxFrameDrops, TxFrameDrops   uint64 // dropped by the stack, such as malformed ones; in package kernel by the interface
	RxRefused                    uint64 // out-of-order segments dropped for lack of pages
	// NICDrops counts frames that the NIC dropped for this port, in package kernel for the interface. In package plain
	// it counts waits for a free page.
	NICDrops uint64
}

// QueueStats is the state of a receive queue.
type QueueStats struct {
	Queue   int
	Binding uint32 // 0: host memory
}

// BindingStats counts a binding's pages. A page of a receive binding is in one of four states; some implementations
// count pages of several states in one field. In package kernel, Held counts tokens.
type BindingStats struct {
	ID     uint32
	TX     bool
	Closed bool
	Pages  int
	Free   int // to post to a queue
	Posted int // for the device to write to
	Queued int // with data that no user has received yet
	Held   int // with a token that a user holds
	Sends  int // TX: incomplete calls of SendDevmem
}
