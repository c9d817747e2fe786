// Package devmem is the API of device memory TCP sockets: payload is received into and sent from memory that the
// socket's user names by (offset, length) and that no CPU needs to read, while headers and the TCP state machine stay
// in the host. The semantics, limits and errno names are those of Linux 7.2's devmem TCP (SCM_DEVMEM_DMABUF,
// SO_DEVMEM_DONTNEED, MSG_ZEROCOPY with a dma-buf).
//
// The package holds the types and the rules; it moves no byte and imports no implementation.
// Package stack implements it over a user-space driver, package kernel over Linux's own sockets. A
// [Device] owns bindings, flow rules and connections; a [Conn] owns the tokens that it gave out.
// Memory given to the device by [Device.BindRX] is written by the device at any time until the
// binding is closed and every token is back; memory named in [Conn.SendDevmem] must not change
// until [Conn.ReadCompletion] says so, or what is sent, or sent again, changes with it.
//
// What differs from the kernel is listed at each method. What the package does not know: namespaces, privileges,
// UDP, page sizes other than 4 KiB.
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

// Limits of [Conn.DontNeed], as net/core/sock.c:sock_devmem_dontneed has them.
const (
	MaxTokenRanges = 128  // MAX_DONTNEED_TOKENS
	MaxFrags       = 1024 // MAX_DONTNEED_FRAGS
)

// Device is a network device, and the network stack on it, that can bind its queues to device memory. Its methods may
// be called from many goroutines.
type Device interface {
	// Register makes [off, off+size) of GPU gpu a buffer that can be bound. Size and offset must be multiples of
	// PageSize, and size not 0 (EINVAL); no such GPU is ENODEV.
	Register(gpu int, off, size uint64) (Buffer, error)

	// BindRX gives the buffer's pages to receive queues: from then on payload that is steered to them lands in the
	// buffer. Errors: EINVAL (no queue, or a queue that cannot be bound; queue 0 is ERANGE), EEXIST (queue already
	// bound), EBUSY (the buffer overlaps one that is bound for receive; Linux allows it and corrupts), EBADF (buffer
	// closed), ENOSPC (too few pages to fill the queues; Linux binds and stalls). All or nothing over the queues.
	BindRX(b Buffer, queues ...int) (Binding, error)

	// BindTX makes the buffer a source for SendDevmem. Errors: EBADF, EINVAL, EOPNOTSUPP.
	BindTX(b Buffer) (Binding, error)

	// AddFlow steers one flow (or what matches its set fields) to a queue; a rule is stronger than RSS. Errors: EINVAL
	// (no such queue, nothing to match), ENOSPC (rule table full), EEXIST.
	AddFlow(f Flow) (FlowID, error)
	DelFlow(id FlowID) error // ENOENT

	// SetRSS spreads what no rule matches over the first n queues (ethtool -X equal n). Queues from n on receive only
	// what a rule sends to them.
	SetRSS(n int) error

	// Listen listens on a local address; the zero Addr of a family listens on every address of it, and port 0 picks one.
	Listen(local netip.AddrPort) (Listener, error)

	// Dial connects. A zero local address or port is chosen by the stack.
	Dial(ctx context.Context, local, remote netip.AddrPort) (Conn, error)

	// Stats is a snapshot.
	Stats() Stats

	// Close aborts every connection, closes every binding and listener, and returns when nothing of the device runs.
	Close() error
}

// Buffer is registered device memory. It may be bound several times; closing it while it is bound is EBUSY.
type Buffer interface {
	GPU() int
	Offset() uint64 // in the GPU's memory
	Size() uint64
	Close() error // idempotent
}

// Binding is a buffer bound for receive or transmit. Close takes effect at once for new packets and sends (receive
// queues go back to host memory); the memory itself stays in use while tokens are held or sends are not complete, as
// [Binding.Done] tells.
type Binding interface {
	ID() uint32 // never 0; in Frag.Binding, and the first argument of SendDevmem
	Close() error
	// Done is closed when the binding was closed and neither the device nor a connection holds any of its memory.
	Done() <-chan struct{}
}

// FlowID names a flow rule.
type FlowID uint32

// Flow is what a rule matches: fields that are zero match anything, but one address is needed, as a
// rule is of one family. Queue is where to.
type Flow struct {
	Src, Dst netip.AddrPort // as they stand in received packets: Dst is ours
	Queue    int
}

// Listener accepts connections; each is a [Conn].
type Listener interface {
	net.Listener
	AcceptConn() (Conn, error)
}

// Kind says where a fragment's bytes are.
type Kind uint8

// Kinds of fragments.
const (
	Dmabuf Kind = iota // in device memory, at Off; Token is to be returned (SCM_DEVMEM_DMABUF)
	Linear             // copied to the linear buffer, behind those of earlier Linear frags (SCM_DEVMEM_LINEAR)
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

// Range is a piece of a buffer bound for transmit, at any alignment.
type Range struct{ Off, Len uint64 }

// RecvFlags change RecvDevmem.
type RecvFlags uint8

const (
	// Peek leaves the data in the stream (MSG_PEEK). Each peek gives out new tokens, all to be returned.
	Peek RecvFlags = 1 << iota
	// Trunc discards up to len(linear) bytes, device memory too, and gives out neither bytes nor frags (MSG_TRUNC).
	Trunc
	// DontWait returns EAGAIN instead of waiting (MSG_DONTWAIT).
	DontWait
)

// Conn is a TCP connection with device memory on either or both sides. One goroutine may receive
// while another sends and a third reads completions; calls of the same kind are served one after
// the other.
//
// Errors can be asked by errno: errors.Is(err, syscall.EFAULT). Deadlines give os.ErrDeadlineExceeded.
type Conn interface {
	// Read reads data that lies in host memory. If the next byte of the stream lies in device memory
	// Read returns EFAULT and the stream is intact: RecvDevmem gets it. It never reads past such a
	// byte.
	//
	// Write sends host memory; it copies. Close releases the connection and every token it gave out (Linux keeps tokens
	// until the socket is destroyed); data not yet acknowledged still goes out.
	net.Conn

	// CloseWrite sends FIN; the peer's data can still be received.
	CloseWrite() error

	// SetLinger is net.TCPConn's: with 0, Close resets the connection and drops what is not acknowledged.
	SetLinger(sec int) error

	// RecvDevmem receives up to len(linear) bytes, of either kind together: it is
	// recvmsg(MSG_SOCK_DEVMEM), len(linear) is the length of the iov, len(frags) the room for control
	// messages. n counts all bytes, nfrags the frags filled, nlinear the bytes copied to linear.
	//
	// A call never mixes data of readable packets (nfrags is 0, n == nlinear: the flow is not steered)
	// with data of unreadable ones; it ends short at the change, and where frags are full. Bytes of an
	// unreadable packet that lie in host memory give a Linear frag each. A frag that is longer than
	// the room left is cut: the next call goes on in the same page with another token.
	//
	// Errors: ErrTooSmall (no frag fits, nothing consumed), io.EOF, EAGAIN (DontWait), ECONNRESET and kin.
	RecvDevmem(frags []Frag, linear []byte, flags RecvFlags) (n, nfrags, nlinear int, err error)

	// DontNeed returns tokens. Unknown tokens are skipped but count to the limit of MaxFrags tokens a
	// call; what is beyond it is ignored without an error. It returns how many frags were freed.
	// Errors: EINVAL if ranges is empty or longer than MaxTokenRanges.
	DontNeed(ranges []TokenRange) (freed int, err error)

	// SendDevmem sends ranges of a buffer bound for transmit. It waits for room (until the write deadline) and returns how
	// many bytes were queued; each call that queued a byte has the next number, from 0, for ReadCompletion. Errors: EINVAL
	// (binding unknown or closed or not for transmit, id 0, no ranges or a range of length 0), EFAULT (range outside the
	// buffer; n counts the bytes before it), EPIPE, ECONNRESET, and Linux's ENODEV: the connection's route is not by the
	// binding's interface. After that interface was down it stays so until the socket sends anything else. While it is
	// down, EHOSTUNREACH as well.
	SendDevmem(binding uint32, ranges []Range) (n int, err error)

	// ReadCompletion waits until sends were acknowledged by the peer and their memory is not in use by
	// the device, and returns their numbers lo to hi, both included, neighbours merged. The zero
	// deadline waits for ever, one in the past not at all (os.ErrDeadlineExceeded). When the
	// connection has failed, outstanding sends complete; then its error is returned.
	ReadCompletion(deadline time.Time) (lo, hi uint32, err error)

	// SetStallLimit makes calls that wait for this connection fail with a *StallError once it made no
	// progress for d: no byte received and none acknowledged. 0 (the default) is off. Set it where
	// data is known to be pending. While it is set an idle peer may be probed (TCP keepalive), so that the error can say
	// whether it is gone.
	SetStallLimit(d time.Duration)

	// State describes the connection's TCP state in one line, for people: the variables of both directions.
	State() string
}

// Stats is a snapshot of a device. Counters never go down.
type Stats struct {
	Queues   []QueueStats
	Bindings []BindingStats

	RxDevmemBytes, RxLinearBytes uint64 // given to users by RecvDevmem, by kind; Read counts as linear
	TxDevmemBytes, TxLinearBytes uint64 // accepted from users by SendDevmem and Write
	RxSegments, TxSegments       uint64
	Retransmits                  uint64
	RxFrameDrops, TxFrameDrops   uint64 // frames that the stack dropped: malformed, or no room on a ring for long
	RxRefused                    uint64 // segments out of order that were dropped as a binding had few pages left
	NICDrops                     uint64 // packets that the NIC dropped for this port, most of them for want of a buffer
}

// QueueStats is one receive queue.
type QueueStats struct {
	Queue   int
	Binding uint32 // 0 = host memory
}

// BindingStats counts the pages of one binding. A page is in exactly one of the four states of a receive binding.
type BindingStats struct {
	ID     uint32
	TX     bool
	Closed bool
	Pages  int
	Free   int // may be posted
	Posted int // the device may write to it
	Queued int // holds data of a connection that was not received yet
	Held   int // a user holds a token
	Sends  int // TX: calls of SendDevmem that are not complete
}
