package capture

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/outfile"
	"vnic.dev/vnic/internal/wire"
)

// MaxPayload is the most bytes of a packet's payload in a capture.
const MaxPayload = 1 << 16

// ErrStuck is the error of Close if the writer made no progress for limits.CaptureEnd, unless another error was first.
var ErrStuck = errors.New("the output is blocked: is it a pipe without a reader?")

// Options configure a capture.
type Options struct {
	Payload int // most bytes of payload of each packet, 0 to MaxPayload; 0: only headers, with RoCEv2's
	// Records bounds the packets that are being sent or wait to be written; 0: as many as fit into 32 MiB, but at least
	// 256 and at most 8192. The number, the default's too, is rounded up to a power of 2.
	Records int
	Comment string // a comment on the whole file; "": none
	// If Once is set, a frame that a captured port sends is written once: as it was sent, with its fate at the first
	// maxEnds captured ports that it reaches before Link.Deliver returns. If a link delays it, it is also written when it
	// arrives.
	Once bool
	// Failed, unless it is nil, is called once, at the first error. Close returns this error, too.
	Failed func(err error)

	patience time.Duration // for tests: replaces limits.CaptureEnd in Close; 0: does not
}

// Capture writes a pcapng file.
type Capture struct {
	ring    *ring
	payload int
	comment string
	once    bool
	failed  func(error)
	limit   time.Duration

	out   io.Writer
	file  *os.File // out, if Close has to close it
	start time.Time

	kick   chan struct{} // capacity 1
	asleep atomic.Bool   // the writer sleeps, or is about to
	ending atomic.Bool
	done   chan struct{} // closed when the writer has ended
	broken atomic.Bool   // there was an error: taps capture nothing more
	left   atomic.Bool   // Close gave up waiting for the writer

	written atomic.Uint64 // packets that the output has accepted completely
	moved   atomic.Uint64 // records that the writer has processed
	closing sync.Once

	mu     sync.Mutex // guards the following; not held while writing
	ifaces []*iface
	links  []*wire.Link
	err    error
}

// Stats count packets.
type Stats struct {
	Packets uint64 // completely in the file
	Missed  uint64 // not captured: the file was not written fast enough, or at all
}

// Create opens a file as outfile.Create does, and captures to it until Close, which closes it.
func Create(name string, o Options) (*Capture, error) {
	f, err := outfile.Create(name)
	if err != nil {
		return nil, err
	}
	c, err := New(f, o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c.file = f
	return c, nil
}

// New captures to w until Close, which does not close w.
func New(w io.Writer, o Options) (*Capture, error) {
	if o.Payload < 0 || o.Payload > MaxPayload {
		return nil, fmt.Errorf("%d bytes of payload of each packet: 0 to %d", o.Payload, MaxPayload)
	}
	if o.Records == 0 {
		o.Records = min(max((32<<20)/recordSize(o.Payload), 256), 8192)
	}
	n := 1
	for n < o.Records {
		n *= 2
	}
	c := &Capture{
		ring: newRing(n, recordSize(o.Payload)), payload: o.Payload, comment: o.Comment, once: o.Once, failed: o.Failed,
		limit: cmp.Or(o.patience, limits.CaptureEnd.Here()), out: w, start: time.Now(),
		kick: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go c.run()
	return c, nil
}

// Attach captures a port's packets from now on, until Close. The link must have no other tap. After Close, Attach does
// nothing.
func (c *Capture) Attach(l *wire.Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending.Load() {
		return
	}
	t := &tap{c: c, link: l}
	t.tx = c.add(l.Name()+"-tx", "what the guest of port "+l.Name()+" sends", false)
	t.rx = c.add(l.Name()+rxSuffix, "what comes for port "+l.Name(), true)
	c.links = append(c.links, l)
	l.SetTap(t)
	c.wake() // so that the writer writes the file's header, and may meet an error, without waiting for traffic
}

const rxSuffix = "-rx"

func (c *Capture) add(name, about string, rx bool) *iface {
	i := &iface{id: len(c.ifaces), name: name, about: about, rx: rx}
	c.ifaces = append(c.ifaces, i)
	return i
}

func (c *Capture) interfaces() []*iface {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ifaces
}

// Stats returns the counters so far.
func (c *Capture) Stats() (s Stats) {
	s.Packets = c.written.Load()
	var seen uint64
	for _, i := range c.interfaces() {
		s.Missed += i.missed.Load()
		seen += i.seen.Load()
	}
	if c.left.Load() { // Close gave up: what is not written is missed
		s.Missed = seen - s.Packets
	}
	return s
}

// Close ends the capture, waits until the captured packets are written, and returns the first error of the capture. If
// the writer neither processes a record nor ends for limits.CaptureEnd, Close tries to interrupt the write, and gives
// up (ErrStuck) if that does not help.
func (c *Capture) Close() error {
	c.closing.Do(c.end)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Capture) end() {
	c.mu.Lock()
	c.ending.Store(true)
	for _, l := range c.links {
		l.SetTap(nil)
	}
	c.mu.Unlock()
	c.wake()
	tick := time.NewTicker(c.limit)
	defer tick.Stop()
	for last, stuck := c.moved.Load(), false; ; {
		select {
		case <-c.done:
		case <-tick.C:
			now := c.moved.Load()
			if now != last {
				last = now
				continue
			}
			if !stuck {
				stuck = true
				c.fail(ErrStuck)
				if d, ok := c.out.(interface{ SetWriteDeadline(time.Time) error }); ok &&
					d.SetWriteDeadline(time.Unix(1, 0)) == nil {
					tick.Reset(max(c.limit, limits.Counted.Here())) // the write ends now
					continue
				}
			}
			c.left.Store(true)
		}
		break
	}
	if c.file != nil {
		if err := c.file.Close(); err != nil {
			c.fail(err)
		}
	}
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
	}
	c.mu.Unlock()
	c.broken.Store(true)
	if first && c.failed != nil {
		c.failed(err)
	}
}
