package virtio_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/virtio"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// A rawGuest is the least that can be behind a NIC: a vhost-user frontend with memory of its own, and rings filled by
// hand. It sees each descriptor that the device sees.
type rawGuest struct {
	t     testing.TB
	dev   *virtio.Device
	front *vhostuser.Frontend
	mem   []byte // guest-physical 0 on
	fd    int
	next  uint64 // of mem, free
	rings []*virtq.Driver
	kicks []int
	calls []int
	mac   wire.MAC

	served chan error
	hang   func() // ends this connection
	end    func() // likewise, and gives up the memory

	gpu     *gpumem.GPU // nil: none
	gpuMem  []byte
	gpuNext uint64 // free, in its first half
}

// rawOptions are what a rawGuest may differ in.
type rawOptions struct {
	pairs int
	mtu   uint16
	drop  uint64 // features that the driver does not take
	gpu   int    // id of its GPU, -1 none
	p2p   bool
	table bool // memory comes by SET_MEM_TABLE

	patience time.Duration // virtio.Config's
	log      *slog.Logger  // nil: none
}

const (
	rawGPU     = 1 << 40 // guest-physical address of the GPU
	rawGPUSize = 4 << 20
)

const (
	rawMem    = 32 << 20
	rawBehind = 4096           // of the file, and not shared: nobody writes there
	rawUser   = 0x7f0000000000 // user address of guest-physical 0
	rawRing   = 256

	fVersion1 = 1 << 32
	fMrg      = 1 << 15
	fEventIdx = 1 << 29
	fIndirect = 1 << 28
	fOffloads = 1<<0 | 1<<1 | 1<<7 | 1<<8 | 1<<11 | 1<<12
)

// newRawGuest attaches a NIC with one queue pair to the switch, and a guest to the NIC. Its rings run.
func newRawGuest(t testing.TB, files *dma.Files, sw *wire.Switch, name string, last byte, pairs int) *rawGuest {
	t.Helper()
	return newRawGuestWith(t, files, sw, name, last, rawOptions{pairs: pairs, mtu: 1500, gpu: -1})
}

func newRawGuestWith(t testing.TB, files *dma.Files, sw *wire.Switch, name string, last byte, o rawOptions) *rawGuest {
	t.Helper()
	g := &rawGuest{t: t, mac: wire.MAC{2, 0, 0, 0, 0, last}}
	conf := nic.Config{Name: name, MAC: g.mac, MTU: o.mtu, QueuePairs: o.pairs, Log: o.log}
	var err error
	if o.gpu >= 0 {
		g.gpu, err = gpumem.NewGPU(files, o.gpu, rawGPUSize, gpumem.Options{})
		g.must(err)
		t.Cleanup(func() { _ = g.gpu.Close() })
		g.gpuMem, err = unix.Mmap(g.gpu.FD(), 0, rawGPUSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		g.must(err)
		t.Cleanup(func() { _ = unix.Munmap(g.gpuMem) })
		path := gpumem.Path{}
		if o.p2p {
			path.Kind = gpumem.PathBus
		}
		conf.GPUs = []nic.GPU{{GPU: g.gpu, Path: path}}
	}
	g.dev, err = virtio.New(virtio.Config{Files: files, Port: conf, SetMemTable: o.table, Patience: o.patience})
	g.must(err)
	t.Cleanup(func() { g.dev.Close() })
	g.must(g.dev.Port().Attach(sw, wire.LinkOptions{}))
	g.connect(o)
	return g
}

// connect attaches a frontend with memory of its own, and starts its rings.
func (g *rawGuest) connect(o rawOptions) {
	t := g.t
	t.Helper()
	ended := false
	g.end = func() {
		if ended {
			return
		}
		ended = true
		g.hang()
		_ = unix.Munmap(g.mem)
		for _, fd := range append(append(g.kicks, g.calls...), g.fd) {
			_ = unix.Close(fd)
		}
		g.kicks, g.calls, g.rings, g.next = nil, nil, nil, 0
	}
	t.Cleanup(g.end)
	g.fd = memfd(t, "rawguest", rawMem+rawBehind)
	var err error
	g.mem, err = unix.Mmap(g.fd, 0, rawMem, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	g.must(err)
	g.dial(o)
	for i := range 2 * o.pairs {
		g.startRing(i)
	}
}

func memfd(t testing.TB, name string, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	testkit.OK(t, err)
	return fd
}

// dial attaches a frontend with the memory that there is.
func (g *rawGuest) dial(o rawOptions) {
	t := g.t
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	g.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	back := unixConn(t, fds[0])
	dma.Go(func() { served <- g.dev.Serve(ctx, back) })
	front := vhostuser.NewFrontend(unixConn(t, fds[1]))
	g.served, g.front = served, front
	gone := false
	g.hang = func() {
		if gone {
			return
		}
		gone = true
		_ = front.Close()
		cancel()
		<-served
	}
	_, _, err = front.Negotiate((fVersion1|fMrg|fEventIdx|fIndirect|fOffloads)&^o.drop,
		uint64(vhostuser.ProtocolMQ|vhostuser.ProtocolReplyAck|vhostuser.ProtocolMemSlots|vhostuser.ProtocolResetDevice))
	g.must(err)
	g.must(front.AddMemory(g.fd, 0, rawUser, rawMem, 0))
	if g.gpu != nil {
		g.must(front.AddMemory(g.gpu.FD(), rawGPU, rawUser+rawGPU, rawGPUSize, 0))
	}
}

// redial hangs up and attaches another frontend, of the same guest: its rings go on from base.
func (g *rawGuest) redial(o rawOptions, base func(ring int) uint32) {
	g.t.Helper()
	g.hang()
	g.dial(o)
	for i := range g.rings {
		g.setup(i, base(i))
	}
}

// setup tells of ring i and starts it.
func (g *rawGuest) setup(i int, base uint32) {
	g.t.Helper()
	desc, avail, used := g.rings[i].Addrs()
	g.must(g.front.SetEnable(i, true)) // before it starts, as QEMU does: what a disabled ring is given is dropped
	g.must(g.front.SetupVring(vhostuser.VringSetup{Index: i, Size: rawRing, Desc: rawUser + desc, Avail: rawUser + avail,
		Used: rawUser + used, Base: base, Kick: g.kicks[i], Call: g.calls[i]}))
	g.kick(i)
}

// hangUp ends the connection; connect makes another.
func (g *rawGuest) hangUp() { g.end() }

func unixConn(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	testkit.OK(t, err)
	return c.(*net.UnixConn)
}

func (g *rawGuest) must(err error) {
	g.t.Helper()
	testkit.OK(g.t, err)
}

// alloc gives n bytes of guest memory, page aligned.
func (g *rawGuest) alloc(n int) (addr uint64, b []byte) {
	g.t.Helper()
	addr = g.next
	g.next += uint64(n+4095) &^ 4095
	if g.next > rawMem {
		g.t.Fatal("guest memory is used up")
	}
	return addr, g.mem[addr:][:n]
}

func (g *rawGuest) startRing(i int) {
	g.t.Helper()
	_, _, _, total := virtq.Layout(rawRing)
	addr, mem := g.alloc(int(total))
	iaddr, imem := g.alloc(rawRing * 16 * 32)
	d, err := virtq.NewDriver(virtq.DriverConfig{Size: rawRing, Mem: mem, Addr: addr, Indirect: imem, IndirectAddr: iaddr,
		EventIdx: true})
	g.must(err)
	var fds [2]int
	for k := range fds {
		fds[k], err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		g.must(err)
	}
	g.rings, g.kicks, g.calls = append(g.rings, d), append(g.kicks, fds[0]), append(g.calls, fds[1])
	g.setup(i, 0)
}

var one8 = [8]byte{1}

func (g *rawGuest) kick(i int) { _, _ = unix.Write(g.kicks[i], one8[:]) }

// publish shows what was added to ring i.
func (g *rawGuest) publish(i int) {
	if g.rings[i].Publish() {
		g.kick(i)
	}
}

// poll waits until ring i gave back at least one chain, asleep on its call.
func (g *rawGuest) poll(i int, dst []virtq.Used) int {
	for deadline := time.Now().Add(20 * time.Second); ; {
		n, err := g.rings[i].Poll(dst)
		testkit.OK(g.t, err)
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
			g.t.Fatalf("ring %d of %s: nothing for 20 s; device errors: %v", i, g.dev.Port().Name(), g.dev.Errors())
		}
	}
}

// frame makes an Ethernet frame with IPv4 and TCP, its checksum left to the device, with n bytes of payload behind it.
func tcpFrame(dst, src wire.MAC, n int) []byte {
	b := make([]byte, 54)
	copy(b[0:], dst[:])
	copy(b[6:], src[:])
	be := binary.BigEndian
	be.PutUint16(b[12:], 0x0800)
	b[14], b[22], b[23] = 0x45, 64, 6
	be.PutUint16(b[16:], uint16(40+n))
	copy(b[26:], []byte{10, 0, 0, src[5], 10, 0, 0, dst[5]})
	be.PutUint16(b[34:], 1000)
	be.PutUint16(b[36:], 2000)
	b[46], b[47] = 0x50, 0x10
	var h splitter.Headers
	_ = splitter.Parse(b, uint32(54+n), &h)
	splitter.FixIPv4(&h, b)
	splitter.FixPartial(&h, b, uint32(n))
	return b
}

// netHeader is virtio_net_hdr of a frame that tcpFrame made; gso is its MSS, or 0.
func netHeader(gso int) []byte {
	b := make([]byte, 12)
	b[0] = 1 // NEEDS_CSUM
	binary.LittleEndian.PutUint16(b[6:], 34)
	binary.LittleEndian.PutUint16(b[8:], 16)
	if gso > 0 {
		b[1] = 1 // TCPV4
		binary.LittleEndian.PutUint16(b[2:], 54)
		binary.LittleEndian.PutUint16(b[4:], uint16(gso))
	}
	return b
}
