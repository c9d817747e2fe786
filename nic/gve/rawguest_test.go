package gve

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// A rawGuest is the least that can be behind a NIC's rings: memory of its own, and a driver that
// fills rings by hand. It sees each descriptor that the device sees. It drives the queues
// themselves, or a whole device through its registers.
type rawGuest struct {
	t     testing.TB
	space *dma.Space
	port  *nic.Port
	rx    []*rxQueue
	tx    []*txQueue
	irq   *irqs
	rxd   []*rxDriver
	txd   []*txDriver
	o     rawOptions
	mac   wire.MAC
	dev   *rawDevice // nil: queues only

	mem  []byte // guest-physical 0 on
	fd   int
	next uint64 // of mem, free

	gpu     *gpumem.GPU // nil: none
	gpuMem  []byte
	gpuNext uint64 // free, in its first half
}

// rawOptions are what a rawGuest may differ in.
type rawOptions struct {
	pairs    int
	mtu      uint16
	gpu      int // id of its GPU, -1 none
	p2p, rsc bool
	device   bool // a whole device
	bufSize  int  // 0: 4096
	ring     int  // 0: rawRing
}

const (
	rawGPU     = 1 << 40 // guest-physical address of the GPU
	rawGPUSize = 4 << 20
	rawMem     = 32 << 20
	rawRing    = 512
	rawHeader  = 256
)

// irqs are the interrupts of a guest, and its queues that failed.
type irqs struct {
	raised []int // eventfds
	mu     sync.Mutex
	errs   map[string]error
	failed chan struct{} // one for each failed queue
}

func (i *irqs) fire(v int) { _, _ = unix.Write(i.raised[v], one8[:]) }

var one8 = [8]byte{1}

func (i *irqs) fail(tx bool, id int, err error) {
	name := "rx" + string(rune('0'+id))
	if tx {
		name = "tx" + string(rune('0'+id))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.errs[name] = err
	i.failed <- struct{}{}
}

func (i *irqs) err(name string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.errs[name]
}

// newRawGuest attaches a NIC to the switch, and a guest to the NIC. Its rings run.
func newRawGuest(t testing.TB, files *dma.Files, sw *wire.Switch, name string, last byte, o rawOptions) *rawGuest {
	t.Helper()
	if o.bufSize == 0 {
		o.bufSize = 4096
	}
	if o.ring == 0 {
		o.ring = rawRing
	}
	g := &rawGuest{t: t, o: o, mac: wire.MAC{2, 0, 0, 0, 0, last}, space: dma.NewSpace(name, files)}
	t.Cleanup(func() { g.must(g.space.Close()) })
	g.memory()
	conf := nic.Config{Name: name, MAC: g.mac, MTU: o.mtu, QueuePairs: o.pairs, HeaderLimit: rawHeader, UnsplitQueue: -1,
		QueueSplits: true, Hash: true}
	if o.gpu >= 0 {
		conf.GPUs = []nic.GPU{g.addGPU(files, o)}
	}
	g.irq = &irqs{errs: map[string]error{}, failed: make(chan struct{}, 64)}
	if o.device {
		g.addDevice(conf)
	} else {
		g.addQueues(conf)
	}
	for i := range o.pairs {
		g.rxd, g.txd = append(g.rxd, nil), append(g.txd, nil)
		g.startRx(i, false)
		g.startTx(i)
	}
	if o.device { // which spreads over all queues until somebody says otherwise
		rss, err := g.port.RSS()
		g.must(err)
		rss.Table = []uint16{0}
		g.must(g.port.SetRSS(rss))
	}
	g.must(g.port.Attach(sw, wire.LinkOptions{}))
	return g
}

// addQueues makes a port with its queues.
func (g *rawGuest) addQueues(conf nic.Config) {
	t, o := g.t, &g.o
	t.Helper()
	for range 2 * o.pairs {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		g.must(err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		g.irq.raised = append(g.irq.raised, fd)
	}
	common := &shared{space: g.space, notify: g.irq, failed: g.irq.fail}
	var queues []nic.RxQueue
	for i := range o.pairs {
		g.rx = append(g.rx, newRxQueue(common, i))
		queues = append(queues, g.rx[i])
	}
	limits := wire.Limits{Csum: true, MaxFrame: uint32(o.mtu) + 14, MaxBytes: maxRSC(o.bufSize)}
	if o.rsc {
		limits.GSO = wire.GSO(splitter.GSOTCPv4, splitter.GSOTCPv6)
	}
	var err error
	g.port, err = nic.NewPort(conf, g.space, queues, func() wire.Limits { return limits })
	g.must(err)
	t.Cleanup(func() {
		for i := range g.rx {
			g.rx[i].close()
		}
		for i := range g.tx {
			g.tx[i].close()
		}
		g.port.Close()
	})
	for i := range o.pairs {
		q, err := newTxQueue(common, i, g.port)
		g.must(err)
		g.tx = append(g.tx, q)
	}
}

func (g *rawGuest) memory() {
	g.t.Helper()
	var err error
	g.fd, err = unix.MemfdCreate("rawguest", unix.MFD_CLOEXEC)
	g.must(err)
	g.t.Cleanup(func() { _ = unix.Close(g.fd) })
	g.must(unix.Ftruncate(g.fd, rawMem))
	g.mem, err = unix.Mmap(g.fd, 0, rawMem, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	g.must(err)
	g.t.Cleanup(func() { _ = unix.Munmap(g.mem) })
	g.must(g.space.Add(dma.Map{IOVA: 0, Size: rawMem, FD: g.fd}))
}

func (g *rawGuest) addGPU(files *dma.Files, o rawOptions) nic.GPU {
	g.t.Helper()
	var err error
	g.gpu, err = gpumem.NewGPU(files, o.gpu, rawGPUSize, gpumem.Options{})
	g.must(err)
	g.t.Cleanup(func() { _ = g.gpu.Close() })
	g.gpuMem, err = unix.Mmap(g.gpu.FD(), 0, rawGPUSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	g.must(err)
	g.t.Cleanup(func() { _ = unix.Munmap(g.gpuMem) })
	g.must(g.space.Add(dma.Map{IOVA: rawGPU, Size: rawGPUSize, FD: g.gpu.FD()}))
	path := gpumem.Path{}
	if o.p2p {
		path.Kind = gpumem.PathBus
	}
	return nic.GPU{GPU: g.gpu, Path: path}
}

func (g *rawGuest) must(err error) {
	g.t.Helper()
	testkit.OK(g.t, err)
}

// alloc gives n bytes of guest memory, zeroed and page aligned.
func (g *rawGuest) alloc(n int) (addr uint64, b []byte) {
	g.t.Helper()
	addr = g.next
	g.next += uint64(n+4095) &^ 4095
	if g.next > rawMem {
		g.t.Fatal("guest memory is used up")
	}
	return addr, g.mem[addr:][:n]
}

// at is guest memory by address.
func (g *rawGuest) at(addr uint64) []byte {
	if addr >= rawGPU {
		return g.gpuMem[addr-rawGPU:]
	}
	return g.mem[addr:]
}

// wait sleeps until an interrupt comes.
func (g *rawGuest) wait(vector int) {
	if g.dev != nil {
		g.bell(g.dev.irqs[vector], irqEnable) // what came meanwhile is latched
	}
	fds := [1]unix.PollFd{{Fd: int32(g.irq.raised[vector]), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 60_000)
	if n == 0 || err != nil && err != unix.EINTR {
		g.t.Helper()
		g.t.Fatalf("vector %d of %s: nothing for a minute, %v; errors: %v", vector, g.port.Name(), err, g.irq.errs)
	}
	var b [8]byte
	_, _ = unix.Read(g.irq.raised[vector], b[:])
}

// rxDriver is a driver's end of a receive queue.
type rxDriver struct {
	g            *rawGuest
	q            *rxQueue
	ring, compl  []byte
	mask         uint32
	split        bool
	header       uint64 // first header buffer
	params       rxParams
	posted, seen uint32 // buffers and completions, since the start
	addrs        []uint64
}

// startRx gives receive queue i new rings, zeroed.
func (g *rawGuest) startRx(i int, split bool) {
	g.t.Helper()
	n := g.o.ring
	d := &rxDriver{g: g, q: g.rx[i], mask: uint32(n - 1), split: split, addrs: make([]uint64, n)}
	p := rxParams{id: i, size: n, complSize: n, bufSize: g.o.bufSize, rsc: g.o.rsc, notify: g.o.pairs + i}
	p.desc, d.ring = g.alloc(n * rxBufLen)
	p.compl, d.compl = g.alloc(n * rxComplLen)
	if split {
		p.headerSize = rawHeader
		d.header, _ = g.alloc(n * rawHeader)
	}
	d.params = p
	if g.dev != nil {
		g.createRx(p)
	} else {
		g.rx[i].stop()
		g.port.SplitQueue(i, split)
		g.must(g.rx[i].start(p))
	}
	g.rxd[i] = d
}

// post posts a buffer at addr; ring shows it.
func (d *rxDriver) post(addr uint64) {
	at := d.posted & d.mask
	b := rxBuf{id: uint16(at) ^ 0x55, addr: addr}
	if d.split {
		b.header = d.header + uint64(at)*rawHeader
		h := d.g.mem[b.header:][:rawHeader]
		for i := range h {
			h[i] = poison
		}
	}
	d.addrs[at] = addr
	b.encode((*[rxBufLen]byte)(d.ring[at*rxBufLen:]))
	d.posted++
}

// doorbell shows what was posted.
func (d *rxDriver) doorbell() {
	if d.g.dev != nil {
		d.g.bell(d.g.dev.rx[d.params.id], d.posted&d.mask)
	} else if err := d.q.doorbell(d.posted & d.mask); err != nil {
		d.g.t.Fatal(err)
	}
}

// poll takes a completion, if there is one.
func (d *rxDriver) poll(c *rxCompl) bool {
	b := d.compl[d.seen&d.mask*rxComplLen:][:rxComplLen]
	if dma.LoadWord(b[4:])&rxGeneration != 0 != (d.seen&(d.mask+1) == 0) {
		return false
	}
	c.decode((*[rxComplLen]byte)(b))
	if want := uint16(d.seen&d.mask) ^ 0x55; c.id != want {
		d.g.t.Errorf("completion %d is of buffer %d, not %d", d.seen, c.id, want)
	}
	d.seen++
	return true
}

// next waits for a completion. It also gives the places of its buffer and its header buffer.
func (d *rxDriver) next(c *rxCompl) (buf, header uint64) {
	d.g.t.Helper()
	at := d.seen & d.mask
	for !d.poll(c) {
		d.g.wait(d.params.notify)
	}
	return d.addrs[at], d.header + uint64(at)*rawHeader
}

// txDriver is a driver's end of a transmit queue.
type txDriver struct {
	g            *rawGuest
	q            *txQueue
	ring, compl  []byte
	mask         uint32
	params       txParams
	posted, seen uint32 // descriptors and completions, since the start
	head         uint32 // what the device has read, by its descriptor completions
	lastReport   uint32
	tag          uint16
	flight       int // packets
}

// startTx gives transmit queue i new rings, zeroed.
func (g *rawGuest) startTx(i int) {
	g.t.Helper()
	n := g.o.ring
	d := &txDriver{g: g, q: g.tx[i], mask: uint32(n - 1)}
	p := txParams{id: i, size: n, complSize: n, notify: i}
	p.desc, d.ring = g.alloc(n * txDescLen)
	p.compl, d.compl = g.alloc(n * txComplLen)
	d.params = p
	if g.dev != nil {
		g.createTx(p)
	} else {
		g.tx[i].stop()
		g.must(g.tx[i].start(p))
	}
	g.txd[i] = d
}

// add adds a descriptor; doorbell shows it.
func (d *txDriver) add(x txDesc) {
	if x.kind == txPacket && x.eop && (d.posted-d.lastReport)&d.mask >= 32 {
		x.report = true
		d.lastReport = d.posted
	}
	x.encode((*[txDescLen]byte)(d.ring[d.posted&d.mask*txDescLen:]))
	d.posted++
}

func (d *txDriver) doorbell() {
	if d.g.dev != nil {
		d.g.bell(d.g.dev.tx[d.params.id], d.posted&d.mask)
	} else if err := d.q.doorbell(d.posted & d.mask); err != nil {
		d.g.t.Fatal(err)
	}
}

// room is how many descriptors may be added.
func (d *txDriver) room() int { return int(d.mask - (d.posted-d.head)&d.mask) }

// poll takes a completion, if there is one, and tells whether it is a packet's.
func (d *txDriver) poll() (some, packet bool) {
	b := d.compl[d.seen&d.mask*txComplLen:][:txComplLen]
	word := dma.LoadWord(b)
	if word&txGeneration != 0 != (d.seen&(d.mask+1) == 0) {
		return false, false
	}
	d.seen++
	if int(word&0x7ff) != d.params.id || le.Uint32(b[4:]) != 0 {
		d.g.t.Errorf("completion %#x %#x", word, b[4:])
	}
	switch word >> 11 & 7 {
	case txPacketDone:
		d.flight--
		return true, true
	case txDescDone:
		if d.head = word >> 16; d.head > d.mask {
			d.g.t.Errorf("descriptors are read up to %d of %d", d.head, d.mask+1)
		}
	default:
		d.g.t.Errorf("completion of type %d", word>>11&7)
	}
	return true, false
}

// sent waits until all packets are completed.
func (d *txDriver) sent() {
	d.g.t.Helper()
	for d.flight > 0 {
		if some, _ := d.poll(); !some {
			d.g.wait(d.params.notify)
		}
	}
}

func checkFDs(t testing.TB) {
	t.Helper()
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		testkit.OK(t, err)
		return len(names)
	}
	before := count()
	t.Cleanup(func() {
		if after := count(); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}
