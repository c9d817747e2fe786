package driver

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// testDevice is a virtio-net device behind a vhost-user backend that sends each frame of the driver back, on the
// receive queue that steer returns, answers control frames, and can be made to misbehave.
type testDevice struct {
	control.Handler
	vhostuser.QueueDevice
	t          testing.TB
	offer      uint64
	pairs      int
	space      *dma.Space
	copier     *dma.Copier
	dispatcher *control.Dispatcher

	mu         sync.Mutex
	features   uint64
	queues     []*testQueue
	backlog    []testFrame
	split      map[int]bool
	refuse     int // how many more times SetSplit fails
	generation uint32
	steer      func(frame []byte) int // the receive queue for a frame; -1: drop it
	hold       bool                   // the driver's frames are not sent back; release returns their chains
	mangle     func(h *netHdr)
	flush      bool // return a queue's receive chains when its split is turned off
	longest    int

	hangUp context.CancelFunc
	wakeFD int
	done   chan struct{}
}

type testQueue struct {
	vq      *virtq.Device
	vring   vhostuser.Vring
	enabled bool
	held    []uint16
	short   int // available chains when a frame last found too few; 0: enough
}

type testFrame struct {
	queue int
	hdr   netHdr
	frame []byte
}

const testOffer = featsWanted &^ (virtionet.FCtrlVQ | vhostuser.FeatureRingReset | virtionet.FMAC | virtionet.FStatus |
	virtionet.FMTU)

func newTestDevice(t testing.TB, pairs int, files *dma.Files) *testDevice {
	d := &testDevice{
		t: t, offer: testOffer, pairs: pairs, space: dma.NewSpace("test", files), copier: dma.NewCopier(),
		split:      map[int]bool{},
		generation: 1, steer: func([]byte) int { return 0 }, done: make(chan struct{}),
	}
	d.dispatcher = control.NewDispatcher(d)
	for range 2 * pairs {
		d.queues = append(d.queues, &testQueue{vring: vhostuser.Vring{Kick: -1, Call: -1, Err: -1}})
	}
	var err error
	d.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	testkit.OK(t, err)
	return d
}

func (d *testDevice) serve(conn *net.UnixConn) <-chan struct{} {
	ended := make(chan struct{})
	worker := make(chan struct{})
	dma.Go(func() { defer close(worker); d.work() })
	ctx, cancel := context.WithCancel(context.Background())
	d.hangUp = cancel
	dma.Go(func() {
		defer close(ended)
		defer cancel()
		if err := vhostuser.NewBackend(d, d.space, slog.New(slog.DiscardHandler)).Serve(ctx, conn); err != nil &&
			ctx.Err() == nil {
			d.t.Errorf("backend: %v", err)
		}
		if ctx.Err() != nil {
			conn.Close()
		}
		close(d.done)
		d.wake()
		<-worker
		d.space.Close()
		unix.Close(d.wakeFD)
	})
	return ended
}

func (d *testDevice) wake() { unix.Write(d.wakeFD, eventfdOne) }

func (d *testDevice) work() {
	for {
		select {
		case <-d.done:
			return
		default:
		}
		d.mu.Lock()
		fds := []unix.PollFd{{Fd: int32(d.wakeFD), Events: unix.POLLIN}}
		more := d.process()
		for _, q := range d.queues {
			if q.vq != nil {
				fds = append(fds, unix.PollFd{Fd: int32(q.vring.Kick), Events: unix.POLLIN})
			}
		}
		d.mu.Unlock()
		if more {
			continue
		}
		unix.Poll(fds, -1)
		d.mu.Lock() // StopQueue, under mu, closes a queue's kick: do not read a new descriptor with its number
		var b [8]byte
		unix.Read(d.wakeFD, b[:])
		for _, q := range d.queues {
			if q.vq != nil {
				unix.Read(q.vring.Kick, b[:])
			}
		}
		d.mu.Unlock()
	}
}

// process takes frames from the transmit queues and delivers what it can of the backlog, once. more reports whether a
// queue already has new chains for it.
func (d *testDevice) process() (more bool) {
	token := d.space.Enter()
	defer d.space.Leave(token)
	for i := 1; i < len(d.queues); i += 2 {
		q := d.queues[i]
		if q.vq == nil || !q.enabled {
			continue
		}
		for d.sendOne(q) {
		}
		d.publish(q)
	}
	d.deliver()
	for _, q := range d.queues {
		switch {
		case q.vq == nil || q.vq.Err() != nil:
		case q.vring.Index%2 == 1:
			more = q.vq.EnableKick() || more
		case len(d.backlog) > 0:
			more = q.vq.EnableKickBeyond(q.short) || more
		}
	}
	return more
}

func (d *testDevice) sendOne(q *testQueue) bool {
	var c virtq.Chain
	ok, err := q.vq.Peek(&c)
	if err != nil {
		d.t.Errorf("transmit queue %d: %v", q.vring.Index/2, err)
	}
	if !ok {
		return false
	}
	d.longest = max(d.longest, len(c.Out))
	b := make([]byte, c.OutLen)
	if _, err := d.copier.Read(b, c.Out); err != nil {
		d.t.Errorf("transmit queue: %v", err)
	}
	if d.hold {
		q.held = append(q.held, c.Head)
		return true
	}
	q.vq.Commit(c.Head, 0)
	var h netHdr
	h.decode((*[netHdrLen]byte)(b))
	frame := b[netHdrLen:]
	if control.IsControl(frame) {
		if reply := d.dispatcher.Handle(frame, nil); reply != nil {
			d.backlog = append(d.backlog, testFrame{0, netHdr{}, reply})
		}
		return true
	}
	if to := d.steer(frame); to >= 0 {
		d.backlog = append(d.backlog, testFrame{to, netHdr{flags: h.flags, gsoType: h.gsoType, gsoSize: h.gsoSize}, frame})
	}
	return true
}

func (d *testDevice) deliver() {
	d.backlog = slices.DeleteFunc(d.backlog, func(f testFrame) bool {
		q := d.queues[2*f.queue]
		return q.vq != nil && q.enabled && d.receive(q, &f)
	})
	for i := 0; i < len(d.queues); i += 2 {
		if q := d.queues[i]; q.vq != nil {
			d.publish(q)
		}
	}
}

// receive writes one whole frame to a queue, or returns false if the queue has too few chains.
func (d *testDevice) receive(q *testQueue, f *testFrame) bool {
	hdrLen := 0
	if d.split[f.queue] {
		var h splitter.Headers
		if err := splitter.Parse(f.frame, uint32(len(f.frame)), &h); err != nil {
			d.t.Errorf("parse: %v", err)
		}
		n, ok := h.SplitLen(defaultHeader)
		if !ok {
			d.t.Errorf("frame of %d bytes cannot be split", len(f.frame))
		}
		hdrLen = int(n)
	}
	type piece struct {
		head uint16
		in   []dma.Segment
		n    int
	}
	var pieces []piece
	left := len(f.frame) - hdrLen
	for first := true; first || left > 0; first = false {
		var c virtq.Chain
		ok, err := q.vq.Peek(&c)
		if err != nil {
			d.t.Errorf("receive queue %d: %v", f.queue, err)
		}
		if !ok {
			q.vq.Rewind(len(pieces))
			q.short = len(pieces)
			return false
		}
		in := slices.Clone(c.In)
		room := int(c.InLen)
		if hdrLen > 0 {
			if c.InFirst != netHdrLen+defaultHeader {
				d.t.Errorf("header buffer of %d bytes", c.InFirst)
			}
			if !first {
				in = dma.Cut(nil, in, uint64(c.InFirst), uint64(c.InLen-c.InFirst))
			}
			room -= int(c.InFirst)
		} else if first {
			room -= netHdrLen
		}
		n := min(left, room)
		pieces = append(pieces, piece{c.Head, in, n})
		left -= n
	}
	h := f.hdr
	h.hdrLen, h.numBuffers = uint16(hdrLen), uint16(len(pieces))
	if d.mangle != nil {
		d.mangle(&h)
	}
	var head [netHdrLen]byte
	h.encode(&head)
	rest := f.frame[hdrLen:]
	for i, p := range pieces {
		written := p.n
		pos := uint64(0)
		if i == 0 {
			d.write(p.in, 0, append(head[:], f.frame[:hdrLen]...))
			pos = uint64(netHdrLen)
			written += netHdrLen + hdrLen
			if hdrLen > 0 {
				pos = netHdrLen + defaultHeader
			}
		}
		d.write(p.in, pos, rest[:p.n])
		rest = rest[p.n:]
		q.vq.Commit(p.head, uint32(written))
	}
	q.short = 0
	return true
}

func (d *testDevice) write(in []dma.Segment, off uint64, b []byte) {
	if len(b) == 0 {
		return
	}
	if _, err := d.copier.Write(dma.Cut(nil, in, off, uint64(len(b))), b); err != nil {
		d.t.Errorf("write: %v", err)
	}
}

func (d *testDevice) publish(q *testQueue) {
	if q.vq.Publish() {
		unix.Write(q.vring.Call, eventfdOne)
	}
}

func (d *testDevice) inject(queue int, h netHdr, frame []byte) {
	d.do(func() { d.backlog = append(d.backlog, testFrame{queue, h, frame}) })
}

func (d *testDevice) release() {
	d.do(func() {
		d.hold = false
		for _, q := range d.queues {
			for _, h := range q.held {
				q.vq.Commit(h, 0)
			}
			if q.held = nil; q.vq != nil {
				d.publish(q)
			}
		}
	})
}

func (d *testDevice) do(f func()) {
	d.mu.Lock()
	f()
	d.mu.Unlock()
	d.wake()
}

func (d *testDevice) rawUsed(vring int, elems ...[2]uint32) {
	done := make(chan struct{})
	dma.Go(func() {
		defer close(done)
		d.mu.Lock()
		defer d.mu.Unlock()
		q := d.queues[vring]
		token := d.space.Enter()
		defer d.space.Leave(token)
		size := uint64(q.vring.Size)
		segs, err := d.space.Translate(nil, q.vring.Used, 4+8*size, dma.Write)
		if err != nil {
			d.t.Error(err)
			return
		}
		var b [4]byte
		d.copier.Read(b[:], segs)
		idx := binary.LittleEndian.Uint16(b[2:])
		for _, e := range elems {
			elem := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, e[0]), e[1])
			d.copier.Write(dma.Cut(nil, segs, 4+8*(uint64(idx)%size), 8), elem)
			idx++
		}
		binary.LittleEndian.PutUint16(b[2:], idx)
		d.copier.Write(dma.Cut(nil, segs, 0, 4), b[:])
		unix.Write(q.vring.Call, eventfdOne)
	})
	<-done
}

func (d *testDevice) Features() uint64 { return d.offer }
func (d *testDevice) ProtocolFeatures() uint64 {
	return uint64(vhostuser.ProtocolMQ | vhostuser.ProtocolReplyAck | vhostuser.ProtocolMTU | vhostuser.ProtocolMemSlots)
}
func (d *testDevice) SetFeatures(f uint64) error {
	d.do(func() { d.features = f })
	return nil
}
func (d *testDevice) MaxQueues() int   { return 2 * d.pairs }
func (d *testDevice) QueueNum() uint64 { return uint64(d.pairs) }
func (d *testDevice) MTU(uint16) error { return nil }
func (d *testDevice) SetCall(index, fd int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[index]
	if q.vring.Call >= 0 {
		unix.Close(q.vring.Call)
	}
	q.vring.Call = fd
	unix.Write(fd, eventfdOne)
	return nil
}
func (d *testDevice) StartQueue(v vhostuser.Vring) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[v.Index]
	vq, err := virtq.NewDevice(d.space, virtq.Config{
		Size: v.Size, Desc: v.Desc, Avail: v.Avail, Used: v.Used, Base: virtq.BaseOf(v.Base),
		Indirect: d.features&vhostuser.FeatureIndirect != 0, EventIdx: d.features&vhostuser.FeatureEventIdx != 0,
	})
	if err != nil {
		return err
	}
	q.vq, q.vring = vq, v
	d.wake()
	return nil
}
func (d *testDevice) EnableQueue(index int, on bool) error {
	d.do(func() { d.queues[index].enabled = on })
	return nil
}
func (d *testDevice) StopQueue(index int) (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[index]
	if q.vq == nil {
		return 0, fmt.Errorf("ring %d is stopped", index)
	}
	base := q.vq.Base()
	q.vq.Close()
	q.vq, q.held = nil, nil
	for _, fd := range []int{q.vring.Kick, q.vring.Call, q.vring.Err} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	q.vring.Kick, q.vring.Call, q.vring.Err = -1, -1, -1
	d.wake()
	return base.State(), nil
}
func (d *testDevice) Disconnected() {
	for i, q := range d.queues {
		if q.vq != nil {
			d.StopQueue(i)
		}
	}
}

func (d *testDevice) Generation() uint32 { return d.generation }
func (d *testDevice) Info() (control.Info, error) {
	return control.Info{Generation: d.generation, HeaderLimit: defaultHeader, QueuePairs: uint16(d.pairs)}, nil
}
func (d *testDevice) SetSplit(s control.Split) error {
	if int(s.Queue) >= d.pairs || s.Queue == 0 {
		return unix.EINVAL
	}
	if d.refuse > 0 {
		d.refuse--
		return unix.EBUSY
	}
	d.split[int(s.Queue)] = s.On
	if q := d.queues[2*s.Queue]; !s.On && d.flush && q.vq != nil {
		var c virtq.Chain
		for {
			if ok, _ := q.vq.Peek(&c); !ok {
				break
			}
			q.vq.Commit(c.Head, 0)
		}
		d.publish(q)
	}
	return nil
}

// loseState clears the in-band state and begins a new generation, as a restarted backend does.
func (d *testDevice) loseState() {
	d.do(func() {
		d.generation++
		clear(d.split)
		d.dispatcher.Reset()
	})
}
