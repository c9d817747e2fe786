package virtio_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/nic/virtio"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

var le = binary.LittleEndian

// suiteGuest is a nictest.Guest: a vhost-user frontend, and the driver of its rings.
type suiteGuest struct {
	*nictest.Memory
	nictest.Sender
	dev   *virtio.Device
	front *vhostuser.Frontend
	rings []*virtq.Driver
	kicks []int
	calls []int
	mac   wire.MAC
	hdr   int // length of virtio_net_hdr, by the features
	ring  uint16
	wait  time.Duration

	served chan error
	hang   func()

	posted [3]map[uint32][]virtq.Buf
	cookie uint32
	used   [3][]virtq.Used // by receive queue: polled, but not yet returned by next
	flight [3]int          // frames sent and not completed
}

type rawOptions struct {
	pairs int
	mtu   uint16
	drop  uint64
	ring  uint16 // size of the rings; 0: rawRing
	noGPU bool
	p2p   bool
	table bool

	noReset bool

	patience time.Duration
	hold     time.Duration
	clock    func() int64
	log      *slog.Logger // nil: none
	pollers  *nic.Pollers
	wait     time.Duration // how long poll waits for the NIC; 0: 20 s
	sabotage *nic.Sabotage
	claims   bool // the link checks source addresses (wire.Identity)
	storm    int
}

const (
	rawGPU     = nictest.GPUBase
	rawGPUSize = nictest.GPUSize
	rawMem     = 32 << 20
	rawBehind  = 4096
	rawUser    = 0x7f0000000000 // user address of guest-physical address 0
	rawRing    = 256
	poison     = 0xee

	fVersion1 = 1 << 32
	fMrg      = 1 << 15
	fEventIdx = 1 << 29
	fIndirect = 1 << 28
	fMQ       = 1 << 22
	fECNs     = 1<<9 | 1<<13
	fOffloads = 1<<0 | 1<<1 | 1<<7 | 1<<8 | 1<<11 | 1<<12
)

// newSuiteGuest makes a guest whose address the switch has learnt. It calls SetRSS with the RSS that the port has then.
func newSuiteGuest(t testing.TB, files *dma.Files, sw *wire.Switch, i int, o rawOptions) *suiteGuest {
	t.Helper()
	g := newStockGuest(t, files, sw, i, o)
	r, err := g.Port().RSS()
	g.OK(err)
	g.OK(g.Port().SetRSS(r))
	return g
}

// newStockGuest is newSuiteGuest without a call of SetRSS.
func newStockGuest(t testing.TB, files *dma.Files, sw *wire.Switch, i int, o rawOptions) *suiteGuest {
	t.Helper()
	g := newRawGuest(t, files, sw, i, o)
	nictest.Introduce(t, g, i)
	return g
}

// newRawGuest makes a NIC, attaches it to the switch, connects guest i to it, and starts the guest's rings.
func newRawGuest(t testing.TB, files *dma.Files, sw *wire.Switch, i int, o rawOptions) *suiteGuest {
	t.Helper()
	g := &suiteGuest{Memory: nictest.NewMemory(t, 0, rawMem, rawBehind), mac: wire.MAC{2, 0, 0, 0, 0, byte(i + 1)}}
	g.Sender.Driver, g.wait, g.ring = g, cmp.Or(o.wait, 20*time.Second), cmp.Or(o.ring, rawRing)
	conf := nic.Config{Name: string(rune('a' + i)), MAC: g.mac, MTU: o.mtu, QueuePairs: o.pairs, Log: o.log,
		Pollers: o.pollers, Flows: 64, Hold: o.hold, Clock: o.clock,
		Sabotage: o.sabotage}
	if !o.noGPU {
		conf.GPUs = []nic.GPU{g.AddGPU(files, i, o.p2p)}
	}
	var err error
	g.dev, err = virtio.New(virtio.Config{Files: files, Port: conf, SetMemTable: o.table, Patience: o.patience})
	g.OK(err)
	t.Cleanup(g.dev.Close)
	link := wire.LinkOptions{Storm: o.storm}
	if o.claims {
		link.Identity = &wire.Identity{MAC: g.mac}
	}
	g.OK(g.Port().Attach(sw, link))
	g.connect(o)
	return g
}

func (g *suiteGuest) connect(o rawOptions) {
	g.Helper()
	g.OK(unix.Madvise(g.RAM, unix.MADV_REMOVE))
	g.kicks, g.calls, g.rings, g.Next = nil, nil, nil, 0
	for q := range g.posted {
		g.posted[q], g.flight[q], g.used[q] = map[uint32][]virtq.Buf{}, 0, nil
	}
	g.dial(o)
	for i := range 2 * o.pairs {
		g.startRing(i)
	}
}

// dial connects a frontend, negotiates features, and shares the guest's memory, which it leaves as it is.
func (g *suiteGuest) dial(o rawOptions) {
	g.Helper()
	near, far := testkit.SocketPair(g)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	dma.Go(func() { served <- g.dev.Serve(ctx, far) })
	front := vhostuser.NewFrontend(near)
	g.served, g.front = served, front
	g.hang = sync.OnceFunc(func() {
		_ = front.Close()
		cancel()
		<-served
	})
	g.Cleanup(g.hang)
	g.negotiate(o)
	g.OK(front.AddMemory(g.FD, 0, rawUser, rawMem, 0))
	if g.GPU != nil {
		g.OK(front.AddMemory(g.GPU.FD(), rawGPU, rawUser+rawGPU, rawGPUSize, 0))
	}
}

func (g *suiteGuest) negotiate(o rawOptions) {
	g.Helper()
	if g.hdr = 12; o.drop&(fVersion1|fMrg) == fVersion1|fMrg {
		g.hdr = 10
	}
	p := vhostuser.ProtocolMQ | vhostuser.ProtocolReplyAck | vhostuser.ProtocolMemSlots | vhostuser.ProtocolResetDevice |
		vhostuser.ProtocolStatus | vhostuser.ProtocolMTU
	if o.noReset {
		p &^= vhostuser.ProtocolResetDevice
	}
	_, _, err := g.front.Negotiate((fVersion1|fMrg|fEventIdx|fIndirect|fOffloads)&^o.drop, uint64(p))
	g.OK(err)
}

// redial hangs up and connects another frontend of the same guest. Ring i continues at base(i).
func (g *suiteGuest) redial(o rawOptions, base func(ring int) uint32) {
	g.Helper()
	g.hang()
	g.dial(o)
	for i := range g.rings {
		g.setup(i, base(i))
	}
}

func (g *suiteGuest) base(i int) uint32 {
	g.Helper()
	base, err := g.front.GetVringBase(i)
	g.OK(err)
	return base
}

func (g *suiteGuest) bases() (bases []uint32) {
	g.Helper()
	for i := range g.rings {
		bases = append(bases, g.base(i))
	}
	return bases
}

func (g *suiteGuest) usedIdx(i int) uint32 {
	_, _, used := g.rings[i].Addrs()
	return uint32(le.Uint16(g.RAM[used+2:]))
}

func (g *suiteGuest) setup(i int, base uint32) {
	g.Helper()
	desc, avail, used := g.rings[i].Addrs()
	g.OK(g.front.SetEnable(i, true)) // before the ring starts, as QEMU does: a disabled ring drops frames
	g.OK(g.front.SetupVring(vhostuser.VringSetup{Index: i, Size: g.ring, Desc: rawUser + desc, Avail: rawUser + avail,
		Used: rawUser + used, Base: base, Kick: g.kicks[i], Call: g.calls[i]}))
	g.kick(i)
}

func (g *suiteGuest) startRing(i int) {
	g.Helper()
	_, _, _, total := virtq.Layout(g.ring)
	addr, mem := g.Alloc(int(total))
	f, _ := g.front.Features()
	c := virtq.DriverConfig{Size: g.ring, Mem: mem, Addr: addr, EventIdx: f&fEventIdx != 0}
	if f&fIndirect != 0 {
		c.IndirectAddr, c.Indirect = g.Alloc(int(g.ring) * 16 * 32)
	}
	d, err := virtq.NewDriver(c)
	g.OK(err)
	g.rings = append(g.rings, d)
	g.kicks, g.calls = append(g.kicks, nictest.EventFD(g)), append(g.calls, nictest.EventFD(g))
	g.setup(i, 0)
}

var one8 = [8]byte{1}

func (g *suiteGuest) kick(i int) { _, _ = unix.Write(g.kicks[i], one8[:]) }

func (g *suiteGuest) publish(i int) {
	if g.rings[i].Publish() {
		g.kick(i)
	}
}

// poll waits until ring i has used chains, asleep on the ring's call eventfd, and returns how many it has put into dst.
// After g.wait it ends the test.
func (g *suiteGuest) poll(i int, dst []virtq.Used) int {
	for deadline := time.Now().Add(g.wait); ; {
		n, err := g.rings[i].Poll(dst)
		testkit.OK(g.TB, err)
		if n > 0 {
			return n
		}
		if g.rings[i].EnableCall() {
			continue
		}
		fds := [1]unix.PollFd{{Fd: int32(g.calls[i]), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds[:], 1000)
		var b [8]byte
		_, _ = unix.Read(g.calls[i], b[:])
		if time.Now().After(deadline) {
			g.Fatalf("ring %d of %s: nothing for %v; device errors: %v", i, g.Port().Name(), g.wait, g.dev.Errors())
		}
	}
}

func (g *suiteGuest) Port() *nic.Port { return g.dev.Port() }
func (g *suiteGuest) MAC() wire.MAC   { return g.mac }

// Copied implements nictest.Guest.
func (g *suiteGuest) Copied(q int) *dma.Counts { return g.dev.Counts(q) }

// Stop implements nictest.Guest.
func (g *suiteGuest) Stop(q int) {
	g.Helper()
	g.base(2 * q)
}

// Buffers implements nictest.Guest.
func (g *suiteGuest) Buffers(q int) (bufs [][]byte) {
	for _, cookie := range slices.Sorted(maps.Keys(g.posted[q])) {
		for _, b := range g.posted[q][cookie] {
			bufs = append(bufs, bytes.Clone(g.At(b.Addr)[:b.Len]))
		}
	}
	return bufs
}

// Arm implements nictest.Guest.
func (g *suiteGuest) Arm(q int) {
	g.Helper()
	if g.rings[2*q].EnableCall() {
		g.Fatalf("queue %d has something already", q)
	}
	g.called(2 * q)
}

// Called implements nictest.Guest.
func (g *suiteGuest) Called(q int) bool { return g.called(2 * q) }

func (g *suiteGuest) SetSplit(q int, on bool) {
	g.Helper()
	g.OK(g.Port().SetSplit(control.Split{Queue: uint16(q), On: on}))
}

func (g *suiteGuest) fault(vring int) (fd int) {
	g.Helper()
	fd = nictest.EventFD(g)
	g.OK(g.front.SetVringErr(vring, fd))
	return fd
}

func (g *suiteGuest) broken(vring int, fault int) string {
	g.Helper()
	fds := []unix.PollFd{{Fd: int32(fault), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 20000); n != 1 {
		g.Fatalf("the error descriptor is not fired: %v", err)
	}
	e := g.dev.Errors()[vring]
	if e == "" {
		g.Errorf("errors: %v", g.dev.Errors())
	}
	return e
}

func (g *suiteGuest) Post(q, n int) {
	g.Helper()
	split, err := g.Port().Split(uint16(q))
	g.OK(err)
	for range n {
		var bufs []virtq.Buf
		if split.On {
			addr := g.Put(bytes.Repeat([]byte{poison}, g.hdr+256))
			bufs = []virtq.Buf{{Addr: addr, Len: uint32(g.hdr + 256)}, {Addr: g.PayloadPage(), Len: nictest.PayloadBuf}}
		} else {
			addr, _ := g.Alloc(68 << 10)
			bufs = []virtq.Buf{{Addr: addr, Len: 68 << 10}}
		}
		g.cookie = (g.cookie + 1) % rawRing
		g.posted[q][g.cookie] = bufs
		g.OK(g.rings[2*q].Add(nil, bufs, g.cookie))
	}
	g.publish(2 * q)
}

func (g *suiteGuest) repost(q int, u virtq.Used) {
	g.OK(g.rings[2*q].Add(nil, g.posted[q][u.Cookie], u.Cookie))
}

func netHeader(f *nictest.Frame) []byte {
	b := make([]byte, 12)
	if f.Partial {
		b[0] = 1
		le.PutUint16(b[6:], f.Start)
		le.PutUint16(b[8:], f.Offset)
	}
	if f.GSO != splitter.GSONone {
		b[1] = map[splitter.GSOType]byte{splitter.GSOTCPv4: 1, splitter.GSOTCPv6: 4}[f.GSO]
		le.PutUint16(b[4:], f.MSS)
	}
	return b
}

func (g *suiteGuest) layOut(f *nictest.Frame, gpu bool) []virtq.Buf {
	g.Helper()
	head := append(netHeader(f)[:g.hdr], f.Header...)
	bufs := []virtq.Buf{{Addr: g.Put(head), Len: uint32(len(head))}}
	if n := len(f.Payload); n > 0 {
		bufs = append(bufs, virtq.Buf{Addr: g.PutPayload(f.Payload, gpu), Len: uint32(n)})
	}
	return bufs
}

func (g *suiteGuest) Add(q int, f *nictest.Frame, gpu bool) {
	g.Helper()
	g.OK(g.rings[2*q+1].Add(g.layOut(f, gpu), nil, 0))
	g.flight[q]++
}

func (g *suiteGuest) Show(q int) { g.publish(2*q + 1) }

func (g *suiteGuest) Sent(q int) {
	g.Helper()
	var used [rawRing]virtq.Used
	for g.flight[q] > 0 {
		g.flight[q] -= g.poll(2*q+1, used[:])
	}
}

func (g *suiteGuest) next(q int) virtq.Used {
	if len(g.used[q]) == 0 {
		var used [rawRing]virtq.Used
		n := g.poll(2*q, used[:])
		g.used[q] = append(g.used[q], used[:n]...)
	}
	u := g.used[q][0]
	g.used[q] = g.used[q][1:]
	return u
}

func (g *suiteGuest) Receive(q int) (f nictest.Frame) {
	g.Helper()
	u := g.next(q)
	bufs := g.posted[q][u.Cookie]
	if f.Split = len(bufs) == 2; u.Len == 0 {
		return f // the device has returned the chain unused
	}
	first := g.At(bufs[0].Addr)[:bufs[0].Len]
	hdr := append(first[:g.hdr:g.hdr], 1, 0)[:12] // a legacy header has no num_buffers: it gets num_buffers 1
	f.Partial, f.Good = hdr[0]&1 != 0, hdr[0]&2 != 0
	f.Start, f.Offset, f.MSS = le.Uint16(hdr[6:]), le.Uint16(hdr[8:]), le.Uint16(hdr[4:])
	f.GSO = map[byte]splitter.GSOType{0: splitter.GSONone, 1: splitter.GSOTCPv4, 4: splitter.GSOTCPv6}[hdr[1]&0x7f]
	f.Buffers = int(le.Uint16(hdr[10:]))
	if !f.Split {
		f.Header = bytes.Clone(first[g.hdr:u.Len])
		if n := le.Uint16(hdr[2:]); n != 0 && f.GSO == splitter.GSONone {
			g.Errorf("hdr_len %d of a frame that is not split", n)
		}
		return f
	}
	clean := uint32(g.hdr) + uint32(le.Uint16(hdr[2:]))
	f.Header = bytes.Clone(first[g.hdr:clean])
	left := u.Len - clean
	for i := range f.Buffers {
		if i > 0 {
			u = g.next(q)
			bufs = g.posted[q][u.Cookie]
			clean, left = 0, u.Len
		}
		for _, b := range g.At(bufs[0].Addr)[clean:bufs[0].Len] {
			f.Dirty = f.Dirty || b != poison
		}
		f.Payload = append(f.Payload, g.At(bufs[1].Addr)[:left]...)
	}
	return f
}
