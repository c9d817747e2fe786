// Package stacktest has a pair of NICs in memory, joined by a wire that may be faulty. Each NIC accesses device memory
// from its own goroutine, without a lock that the tested program holds meanwhile, so that the race detector can report
// a page that NIC and program use at the same time.
package stacktest

import (
	"cmp"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/splitter"
)

// Options describe both NICs and the wire. Loss, Dup and Reorder are probabilities for each packet, after Cut; Loss
// applies only to TCP.
type Options struct {
	MTU      int // 0: 1500
	Queues   int // 0: 4
	GPUSize  int // bytes of each NIC's only GPU, number 0; 0: 4 MiB
	RingSize int // most pages posted to a bound queue, and most frames on a transmit queue; 0: 256

	Seed               uint64
	Loss, Dup, Reorder float64
	Cut                bool // the sending NIC cuts GSO packets into segments
	Merge              bool // the receiving NIC merges segments, as RSC does
	Checksums          bool // NICs complete checksums that they send; received frames in host memory lack CsumGood
	LinearHead         int  // at random, up to this many payload bytes of a split frame stay in the header buffer
}

// NIC implements stack.NIC and stack.Control.
type NIC struct {
	o    Options
	mac  net.HardwareAddr
	gpu  []byte
	peer *NIC
	ctl  commands

	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	callback sync.Mutex // held during calls of the receiver

	mu       sync.Mutex
	r        driver.Receiver
	rng      *rand.Rand
	inbox    []packet
	delayed  []packet
	tx       [][]txFrame
	full     []bool
	bound    []boundQueue
	filter   func(h *splitter.Headers, payload int) bool
	hold     bool
	keep     error
	finished []finished
	drops    uint64
	lost     uint64
	closed   bool
	badSums  int
	last     []byte
}

type packet struct {
	header  []byte
	payload []byte
	mss     int // of a GSO packet: most payload bytes of a segment; 0: not a GSO packet
	bad     bool
	after   int // of a delayed packet: how many more may overtake it
}

type txFrame struct {
	driver.TxFrame
	header, linear []byte
	device         []driver.Range
}

type finished struct {
	queue  int
	cookie uint64
}

type boundQueue struct {
	src   driver.PageSource
	pages []uint64
}

// NewPair makes two NICs that are joined by a wire. Each runs from Start to Close.
func NewPair(o Options) (a, b *NIC) {
	o.MTU, o.Queues = cmp.Or(o.MTU, 1500), cmp.Or(o.Queues, 4)
	o.GPUSize, o.RingSize = cmp.Or(o.GPUSize, 4<<20), cmp.Or(o.RingSize, 256)
	a, b = newNIC(o, 1), newNIC(o, 2)
	a.peer, b.peer = b, a
	return a, b
}

func newNIC(o Options, i byte) *NIC {
	n := &NIC{
		o: o, mac: net.HardwareAddr{2, 0, 0, 0, 0, i}, gpu: make([]byte, o.GPUSize),
		rng:  rand.New(rand.NewPCG(o.Seed, uint64(i))),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		tx: make([][]txFrame, o.Queues), full: make([]bool, o.Queues), bound: make([]boundQueue, o.Queues),
	}
	n.ctl.reset(o.Queues)
	return n
}

// Memory returns the memory of the NIC's GPU, which the NIC's goroutine accesses.
func (n *NIC) Memory() []byte { return n.gpu }

// Drops returns the number of received frames for which a bound queue had too few pages.
func (n *NIC) Drops() uint64 { n.mu.Lock(); defer n.mu.Unlock(); return n.drops }

// Lost returns the number of packets that this NIC sent and that Filter dropped or Options.Loss selected. Packets that
// Loss selected pass all the same if they are not TCP.
func (n *NIC) Lost() uint64 { n.mu.Lock(); defer n.mu.Unlock(); return n.lost }

// BadSums returns the number of received TCP frames for bound queues with a wrong checksum. They are counted only with
// Options.Checksums and without Options.Merge.
func (n *NIC) BadSums() int { n.mu.Lock(); defer n.mu.Unlock(); return n.badSums }

// Filter makes the NIC drop packets that it sends if keep returns false; nil keeps all. The NIC calls keep without a
// lock.
func (n *NIC) Filter(keep func(h *splitter.Headers, payload int) bool) {
	n.mu.Lock()
	n.filter = keep
	n.mu.Unlock()
}

// HoldCompletions makes the NIC hold back the completions of sent frames (on is true), or pass them (on is false).
func (n *NIC) HoldCompletions(on bool) {
	n.mu.Lock()
	n.hold = on
	n.mu.Unlock()
	n.kick()
}

// Inject passes frames, which were never on the wire, to the receiver, if the NIC has been started and not closed.
func (n *NIC) Inject(frames []driver.RxFrame) {
	n.callback.Lock()
	defer n.callback.Unlock()
	n.mu.Lock()
	r := n.r
	n.mu.Unlock()
	if r != nil {
		r.Receive(frames)
	}
}

// TakePosted removes up to k posted pages from a bound queue, and returns them. If fewer are posted, it may first post
// more.
func (n *NIC) TakePosted(queue, k int) []uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := &n.bound[queue]
	if k > len(b.pages) {
		n.post(queue)
	}
	k = min(k, len(b.pages))
	pages := slices.Clone(b.pages[:k])
	b.pages = b.pages[k:]
	return pages
}

// LastHeader returns the header of the last received TCP frame for a bound queue, also if the NIC dropped it.
func (n *NIC) LastHeader() []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.last)
}

// Break makes Err and Transmit return ENODEV and wakes the receiver, as a driver does when a device has broken a rule.
func (n *NIC) Break() {
	n.mu.Lock()
	n.closed = true
	r := n.r
	n.mu.Unlock()
	n.callback.Lock()
	defer n.callback.Unlock()
	if r != nil {
		r.Wake()
	}
}

func (n *NIC) MAC() net.HardwareAddr { return n.mac }
func (n *NIC) MTU() int              { return n.o.MTU }
func (n *NIC) QueuePairs() int       { return n.o.Queues }
func (n *NIC) Stats() driver.Stats   { return driver.Stats{} }

// Offloads implements stack.NIC.
func (n *NIC) Offloads() driver.Offloads {
	return driver.Offloads{RxCsum: true, RxTSO4: n.o.Merge, RxTSO6: n.o.Merge}
}

func (n *NIC) GPUs() []driver.GPUInfo {
	return []driver.GPUInfo{{ID: 0, Size: uint64(len(n.gpu))}}
}

// Err returns ENODEV if the NIC was broken (Break) or closed.
func (n *NIC) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return syscall.ENODEV
	}
	return nil
}

// Start implements stack.NIC.
func (n *NIC) Start(r driver.Receiver) error {
	n.mu.Lock()
	n.r = r
	n.mu.Unlock()
	go n.run()
	return nil
}

// Close implements stack.NIC.
func (n *NIC) Close() error {
	close(n.stop)
	<-n.done
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed, n.r = true, nil
	for q := range n.bound {
		n.unbind(q)
	}
	return nil
}

// BindQueue implements stack.NIC.
func (n *NIC) BindQueue(queue int, gpu int, src driver.PageSource) error {
	if gpu != 0 {
		return syscall.ENODEV
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ctl.split(queue, true); err != nil {
		return err
	}
	n.bound[queue] = boundQueue{src: src}
	n.post(queue)
	return nil
}

// KeepQueues makes UnbindQueue fail with err, unless it is nil: the NIC keeps bound queues and their pages until Close.
func (n *NIC) KeepQueues(err error) {
	n.mu.Lock()
	n.keep = err
	n.mu.Unlock()
}

// UnbindQueue implements stack.NIC.
func (n *NIC) UnbindQueue(queue int) error {
	n.callback.Lock() // meanwhile no frame is being delivered to the receiver
	defer n.callback.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keep != nil {
		return n.keep
	}
	n.unbind(queue)
	if n.closed { // a closed NIC accepts no commands
		return nil
	}
	return n.ctl.split(queue, false)
}

func (n *NIC) unbind(queue int) {
	if b := &n.bound[queue]; b.src != nil {
		b.src.ReturnPages(queue, b.pages)
		*b = boundQueue{}
	}
}

// post fills a bound queue with its source's free pages, up to RingSize, unless more than half as many are posted. The
// caller holds n.mu.
func (n *NIC) post(queue int) {
	b := &n.bound[queue]
	if b.src == nil || len(b.pages) > n.o.RingSize/2 {
		return
	}
	dst := make([]uint64, n.o.RingSize-len(b.pages))
	b.pages = append(b.pages, dst[:b.src.TakePages(queue, dst)]...)
}

// Refill implements stack.NIC.
func (n *NIC) Refill(queue int) {
	n.mu.Lock()
	n.post(queue)
	n.mu.Unlock()
}

func (n *NIC) kick() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Transmit implements stack.NIC.
func (n *NIC) Transmit(queue int, f []driver.TxFrame) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.kick()
	if n.closed {
		return 0, syscall.ENODEV
	}
	for i := range f {
		if len(n.tx[queue]) == n.o.RingSize {
			n.full[queue] = true
			return i, nil
		}
		n.tx[queue] = append(n.tx[queue], txFrame{
			f[i], slices.Clone(f[i].Header), slices.Clone(f[i].Linear), slices.Clone(f[i].Device),
		})
	}
	return len(f), nil
}

func (n *NIC) run() {
	defer close(n.done)
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	for {
		busy := n.send()
		busy = n.complete() || busy
		busy = n.receive() || busy
		if busy {
			select {
			case <-n.stop:
				return
			default:
				continue
			}
		}
		n.mu.Lock()
		late := len(n.delayed) > 0
		n.mu.Unlock()
		if late {
			idle.Reset(time.Millisecond)
		}
		select {
		case <-n.stop:
			return
		case <-n.wake:
		case <-idle.C:
			n.mu.Lock()
			n.inbox = append(n.inbox, n.delayed...)
			n.delayed = nil
			n.mu.Unlock()
		}
	}
}

func (n *NIC) send() bool {
	busy := false
	for q := range n.tx {
		n.mu.Lock()
		frames := n.tx[q]
		k := min(len(frames), 64)
		keep := n.filter
		n.mu.Unlock()
		for i := range k {
			f := &frames[i]
			p := packet{header: f.header, payload: slices.Clone(f.linear)}
			for _, r := range f.device {
				p.payload = append(p.payload, n.gpu[r.Off:r.Off+uint64(r.Len)]...)
			}
			if f.GSOType != splitter.GSONone {
				p.mss = int(f.GSOSize)
			}
			n.wire(p, keep)
		}
		if k == 0 {
			continue
		}
		busy = true
		n.mu.Lock()
		for i := range k {
			n.finished = append(n.finished, finished{q, n.tx[q][i].Cookie})
		}
		n.tx[q] = slices.Delete(n.tx[q], 0, k)
		n.mu.Unlock()
	}
	return busy
}

func (n *NIC) complete() bool {
	n.mu.Lock()
	if n.hold || len(n.finished) == 0 {
		n.mu.Unlock()
		return false
	}
	done := n.finished
	n.finished = nil
	r := n.r
	n.mu.Unlock()
	n.callback.Lock()
	defer n.callback.Unlock()
	for q := range n.tx {
		var cookies []uint64
		for _, f := range done {
			if f.queue == q && f.cookie != 0 {
				cookies = append(cookies, f.cookie)
			}
		}
		if len(cookies) > 0 {
			r.Completed(q, cookies)
		}
	}
	return true
}

func (n *NIC) receive() bool {
	n.callback.Lock()
	defer n.callback.Unlock()
	n.mu.Lock()
	k := min(len(n.inbox), 64)
	batch := slices.Clone(n.inbox[:k])
	n.inbox = slices.Delete(n.inbox, 0, k)
	r := n.r
	if n.o.Merge {
		batch = merge(batch)
	}
	var frames []driver.RxFrame
	for i := range batch {
		if f, ok := n.place(&batch[i]); ok {
			frames = append(frames, f)
		}
	}
	n.mu.Unlock()
	if len(frames) > 0 {
		r.Receive(frames)
		for i := range frames { // a receiver that has wrongly kept the frames finds zeros
			clear(frames[i].Header)
			clear(frames[i].Payload)
		}
		n.mu.Lock()
		for q := range n.bound {
			n.post(q)
		}
		n.mu.Unlock()
	}
	return k > 0
}

func (n *NIC) place(p *packet) (driver.RxFrame, bool) {
	var h splitter.Headers
	if err := splitter.Parse(p.header, uint32(len(p.header)+len(p.payload)), &h); err != nil {
		return driver.RxFrame{}, false
	}
	q := n.ctl.queue(&h)
	b := &n.bound[q]
	f := driver.RxFrame{Queue: q, CsumGood: !p.bad}
	if b.src == nil || h.Class != splitter.TCP {
		f.Header = append(slices.Clone(p.header), p.payload...)
		f.Split = b.src != nil
		f.CsumGood = !n.o.Checksums
		return f, true
	}
	if n.o.Checksums && !n.o.Merge && !valid(&h, p) {
		n.badSums++
	}
	f.Split = true
	f.Header = slices.Clone(p.header)
	n.last = slices.Clone(p.header)
	payload := p.payload
	if k := n.o.LinearHead; k > 0 && len(payload) > 0 {
		k = n.rng.IntN(min(k, len(payload)) + 1)
		f.Header = append(f.Header, payload[:k]...)
		payload = payload[k:]
	}
	need := (len(payload) + driver.PageSize - 1) / driver.PageSize
	if need > len(b.pages) {
		n.drops++
		return driver.RxFrame{}, false
	}
	for len(payload) > 0 {
		pos := b.pages[0]
		b.pages = b.pages[1:]
		c := copy(n.gpu[pos:pos+driver.PageSize], payload)
		f.Payload = append(f.Payload, driver.Range{GPU: 0, Off: pos, Len: uint32(c)})
		f.PayloadLen += c
		payload = payload[c:]
	}
	return f, true
}
