package control

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// Sender puts a frame on a transmit queue of the NIC. Send must not keep the frame, and is called by many
// goroutines. Its error net.ErrClosed ends the client's call; other errors are treated as a lost frame.
type Sender interface{ Send(frame []byte) error }

const (
	firstRetry = 50 * time.Millisecond // wait before the first repeat of a request; doubles with each, up to lastRetry
	lastRetry  = time.Second
)

// maxSpan bounds the distance between the numbers of pending requests, so that the dispatcher still recognizes a repeat
// of the oldest one.
const maxSpan = Window / 2

// ClientOptions configure a Client; the zero value works.
type ClientOptions struct {
	MAC     [6]byte       // the source address of frames
	Timeout time.Duration // how long a call waits for an answer; 0: limits.Control.Here()
	// OnGeneration, if set, is called by Receive when a valid reply or notify has another generation than the one
	// before: the port's state is empty. It must not wait for a Call, whose answer Receive passes on later.
	OnGeneration func(old, generation uint32)
}

// Error is the NIC's refusal of a command. errors.Is finds its Errno.
type Error struct {
	Class   Class
	Command Command
	Errno   syscall.Errno
	Text    string
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("control command %d.%d: %v", e.Class, e.Command, e.Errno)
	}
	return e.Text
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// ErrNoAnswer means that a request got no answer in time; errors.Is finds ETIMEDOUT.
var ErrNoAnswer = fmt.Errorf("no answer from the NIC's control channel: %w", syscall.ETIMEDOUT)

// Client is a driver's end of the control channel. Its frames have its session, a random number. Its methods
// are safe for concurrent use.
type Client struct {
	send    Sender
	o       ClientOptions
	session uint32
	closed  chan struct{}
	why     error

	mu       sync.Mutex
	seq      uint32           // under mu: of the next request
	pending  map[uint32]*call // under mu
	freed    chan struct{}    // under mu: closed and replaced when a request ends
	gen      uint32           // under mu
	genKnown bool             // under mu
	done     bool             // under mu: closed is closed
	jobs     jobWaits         // under mu
	rdma     []*RDMAEvents    // under mu; replaced, not changed
	stats    ClientStats      // under mu
}

type call struct {
	class Class
	cmd   Command
	reply chan answer // of capacity 1
}

type answer struct {
	errno syscall.Errno
	data  []byte
}

// ClientStats counts requests and frames.
type ClientStats struct {
	Requests uint64 // without Repeats
	Repeats  uint64 // retransmissions
	Replies  uint64 // to pending requests
	Notifies uint64
	Strays   uint64 // other control frames received: malformed, forged, late, unknown
}

// NewClient returns a client with a new session.
func NewClient(s Sender, o ClientOptions) *Client {
	o.Timeout = cmp.Or(o.Timeout, limits.Control.Here())
	c := &Client{send: s, o: o, closed: make(chan struct{}), seq: 1, pending: make(map[uint32]*call),
		freed: make(chan struct{})}
	for c.session == 0 {
		var b [4]byte
		rand.Read(b[:]) // never fails
		c.session = le.Uint32(b[:])
	}
	return c
}

// Close makes pending and later calls return an error that wraps net.ErrClosed. After Fail it has no effect.
func (c *Client) Close() { c.Fail(net.ErrClosed) }

// Fail is Close with another error. Only the first call of Fail or Close has an effect.
func (c *Client) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.done, c.why = true, err
		close(c.closed)
	}
}

// Generation returns the generation in the NIC's last valid reply or notify; 0 before the first.
func (c *Client) Generation() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// Stats returns the counters.
func (c *Client) Stats() ClientStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Receive processes a frame from receive queue 0. It returns false if the frame does not belong to the
// control channel; else the caller must drop the frame. Receive does not keep the frame.
func (c *Client) Receive(frame []byte) bool {
	if !IsControl(frame) {
		return false
	}
	var f Frame
	err := f.Parse(frame)
	old, changed, cl, rdma := c.classify(&f, err)
	if changed && c.o.OnGeneration != nil {
		c.o.OnGeneration(old, f.Generation)
	}
	rdma.notify(&f, old, changed)
	if cl != nil {
		cl.reply <- answer{f.Errno, bytes.Clone(f.Data)}
	}
	return true
}

// classify counts a frame. It ends waits for the job that the frame reports as ended, or, if the generation has
// changed, for all jobs. It returns the generation before the frame, whether the frame changed it, the call that the
// frame answers, and the frame's notify of RDMA. For a stray frame, all results are zero.
func (c *Client) classify(f *Frame, err error) (old uint32, changed bool, cl *call, rdma rdmaNotify) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.Src == MAC && f.Kind == KindReply && f.Session == c.session {
		if cl = c.pending[f.Seq]; cl != nil && (cl.class != f.Class || cl.cmd != f.Command) {
			cl = nil
		}
	}
	var status JobStatus
	switch {
	case cl != nil && errors.Is(err, syscall.EPROTONOSUPPORT): // the versions agree only on the header up to Seq
		c.stats.Replies++
		c.remove(f.Seq)
		f.Errno, f.Data = syscall.EPROTONOSUPPORT, fmt.Appendf(nil, "the NIC has version %d of the control protocol, "+
			"this driver has %d: use the same vnic in the guest and on its host", f.Version, Version)
		return 0, false, cl, rdmaNotify{}
	case err != nil || f.Src != MAC:
		err = ErrMalformed
	case cl != nil:
	case f.Kind == KindNotify && f.Class == ClassJob && f.Command == JobCompleted:
		err = decode(f.Data, &status)
	case f.Kind == KindNotify && f.Class == ClassRDMA:
		err = rdma.decode(f)
	default:
		err = ErrMalformed
	}
	if err != nil {
		c.stats.Strays++
		return 0, false, nil, rdmaNotify{}
	}
	rdma.events = c.rdma
	old, changed = c.gen, c.genKnown && c.gen != f.Generation
	c.gen, c.genKnown = f.Generation, true
	if changed {
		c.jobs.reset()
	}
	if cl != nil {
		c.stats.Replies++
		c.remove(f.Seq)
	} else if c.stats.Notifies++; status.State == JobDone {
		c.jobs.ended(status)
	}
	return old, changed, cl, rdma
}

func (c *Client) remove(seq uint32) {
	if c.pending[seq] != nil {
		delete(c.pending, seq)
		close(c.freed)
		c.freed = make(chan struct{})
	}
}

// begin registers a new request, once its number is less than maxSpan above the pending ones.
func (c *Client) begin(ctx context.Context, class Class, cmd Command) (seq uint32, cl *call, err error) {
	for {
		c.mu.Lock()
		inWindow := !c.done
		for s := range c.pending {
			inWindow = inWindow && c.seq-s < maxSpan
		}
		if inWindow {
			seq, cl = c.seq, &call{class: class, cmd: cmd, reply: make(chan answer, 1)}
			c.seq++
			c.pending[seq] = cl
			c.stats.Requests++
			c.mu.Unlock()
			return seq, cl, nil
		}
		freed := c.freed
		c.mu.Unlock()
		select {
		case <-freed:
		case <-c.closed:
			return 0, nil, c.why
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
}

// Call sends a request and waits for its answer. It repeats the request until the answer comes, ctx ends, the client or
// the Sender is closed, or ClientOptions.Timeout expires (ErrNoAnswer). A refusal is an *Error. After other errors the
// NIC may have executed the command, except if data is longer than MaxData (ErrMalformed).
func (c *Client) Call(ctx context.Context, class Class, cmd Command, data []byte) ([]byte, error) {
	if len(data) > MaxData {
		return nil, badData("%d bytes of data do not fit in a frame of %d", len(data), MaxFrame)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.o.Timeout, ErrNoAnswer)
	defer cancel()
	reply, err := c.exchange(ctx, class, cmd, data)
	if no := (*Error)(nil); err != nil && !errors.As(err, &no) {
		err = fmt.Errorf("control command %d.%d: %w", class, cmd, err)
	}
	return reply, err
}

func (c *Client) exchange(ctx context.Context, class Class, cmd Command, data []byte) ([]byte, error) {
	seq, cl, err := c.begin(ctx, class, cmd)
	if err != nil {
		return nil, err
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.remove(seq)
	}()
	f := Frame{Dst: MAC, Src: c.o.MAC, Data: data}
	f.Kind, f.Class, f.Command, f.Session, f.Seq = KindRequest, class, cmd, c.session, seq
	frame := f.Append(make([]byte, 0, EthernetLen+HeaderLen+len(data)))
	wait := firstRetry
	for {
		if err := c.send.Send(frame); errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		select {
		case a := <-cl.reply:
			if a.errno != 0 {
				return nil, &Error{class, cmd, a.errno, strings.ToValidUTF8(string(a.data), "?")}
			}
			return a.data, nil
		case <-c.closed:
			return nil, c.why
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
			wait = min(2*wait, lastRetry)
			c.mu.Lock()
			c.stats.Repeats++
			c.mu.Unlock()
		}
	}
}
