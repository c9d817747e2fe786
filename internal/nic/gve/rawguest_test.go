package gve

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// suiteGuest is a nictest.Guest: a driver with rings that the test fills.
type suiteGuest struct {
	*ctl
	nictest.Sender
	o          rawOptions
	mac        wire.MAC
	irqs       []*event // one for each transmit queue, then one for each receive queue
	rxd        []*rxDriver
	txd        []*txDriver
	doorbellAt uint64 // where the device writes a doorbell's index; all queues share it

	mu     sync.Mutex
	errs   map[string]error // by queue, such as tx0: its last error
	failed chan struct{}    // one value for each failure
}

// rawOptions configure a guest and its NIC.
type rawOptions struct {
	pairs    int
	mtu      uint16
	p2p, rsc bool
	bufSize  int // bytes of a receive buffer; 0: 4096
	named    int // bytes of a receive buffer that CREATE_RX_QUEUE names; 0: packetBuffer
	ring     int // entries of each ring; 0: rawRing

	patience time.Duration // Options.Patience
	hold     time.Duration // nic.Config.Hold
	clock    func() int64  // nic.Config.Clock
	wait     time.Duration // how long suiteGuest.wait waits; 0: a minute
	sabotage *nic.Sabotage
}

const (
	rawGPU     = nictest.GPUBase
	rawGPUSize = nictest.GPUSize
	rawMem     = 32 << 20
	rawRing    = 512
	rawHeader  = 256
	poison     = 0xee
)

// newSuiteGuest makes NIC i, attaches it to the switch, and makes its guest, which has a GPU and has created all
// queues. RSS sends all flows to queue 0.
func newSuiteGuest(t testing.TB, files *dma.Files, sw *wire.Switch, i int, o rawOptions) *suiteGuest {
	t.Helper()
	o.bufSize, o.ring, o.wait = cmp.Or(o.bufSize, 4096), cmp.Or(o.ring, rawRing), cmp.Or(o.wait, time.Minute)
	m := nictest.NewMemory(t, 0, rawMem, 0)
	conf := nic.Config{Name: string(rune('a' + i)), MAC: wire.MAC{2, 0, 0, 0, 0, byte(i + 1)}, MTU: o.mtu,
		GPUs: []nic.GPU{m.AddGPU(files, i, o.p2p)}, Flows: 64, Hold: o.hold, Clock: o.clock, Sabotage: o.sabotage}
	c := newCtlIn(m, files, Options{Port: conf, Queues: o.pairs, MaxQueues: o.pairs, Patience: o.patience})
	g := &suiteGuest{ctl: c, o: o, mac: conf.MAC,
		errs: map[string]error{}, failed: make(chan struct{}, 64), rxd: make([]*rxDriver, o.pairs),
		txd: make([]*txDriver, o.pairs)}
	g.Sender.Driver = g
	g.OK(g.dev.Space().Add(g.gpu()))
	g.watchFailures()
	g.start()
	g.configure(2 * o.pairs)
	for v := range 2 * o.pairs {
		g.irqs = append(g.irqs, g.irq(v))
	}
	g.doorbellAt = g.alloc(resourcesLen)
	for i := range o.pairs {
		g.startRx(i, false)
		g.startTx(i)
	}
	rss, err := g.Port().RSS() // to be changed: the default spreads flows over all queues
	g.OK(err)
	rss.Table = []uint16{0}
	g.OK(g.Port().SetRSS(rss))
	g.OK(g.Port().Attach(sw, wire.LinkOptions{}))
	nictest.Introduce(t, g, i)
	return g
}

func (g *suiteGuest) watchFailures() {
	s := g.dev.rx[0].shared
	next := s.failed
	s.failed = func(tx bool, id int, err error) {
		next(tx, id, err)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.errs[fmt.Sprint(map[bool]string{true: "tx", false: "rx"}[tx], id)] = err
		g.failed <- struct{}{}
	}
}

func (g *suiteGuest) failure(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.errs[name]
}

func (g *suiteGuest) broken(name string, want error) {
	g.Helper()
	select {
	case <-g.failed:
	case <-time.After(time.Minute):
		g.Fatalf("%s does not fail", name)
	}
	if err := g.failure(name); !errors.Is(err, want) {
		g.Errorf("%s: %v; want %v", name, err, want)
	}
}

func (g *suiteGuest) Port() *nic.Port { return g.dev.Port() }
func (g *suiteGuest) MAC() wire.MAC   { return g.mac }

// Copied implements nictest.Guest.
func (g *suiteGuest) Copied(q int) *dma.Counts { return g.dev.tx[q].t.Worker.Copier.Counts() }

// SetSplit implements nictest.Guest: it restarts the queue.
func (g *suiteGuest) SetSplit(q int, on bool) {
	g.Helper()
	g.startRx(q, on)
}

// Stop implements nictest.Guest.
func (g *suiteGuest) Stop(q int) {
	g.Helper()
	g.pass(opDestroyRx, uint32(q))
}

// Buffers implements nictest.Guest.
func (g *suiteGuest) Buffers(q int) (bufs [][]byte) {
	d := g.rxd[q]
	for _, addr := range d.addrs[:d.posted] {
		bufs = append(bufs, bytes.Clone(g.At(addr)[:g.o.bufSize]))
	}
	if d.split {
		bufs = append(bufs, bytes.Clone(g.At(d.header)[:g.o.ring*rawHeader]))
	}
	return bufs
}

// Arm implements nictest.Guest.
func (g *suiteGuest) Arm(q int) {
	vector := g.rxd[q].params.notify
	g.bell(irqDoorbells+uint32(vector), irqEnable)
	g.irqs[vector].fired()
}

// Called implements nictest.Guest.
func (g *suiteGuest) Called(q int) bool { return g.irqs[g.rxd[q].params.notify].fired() > 0 }

// wait arms the vector, and sleeps until its interrupt or a signal comes. The test fails if none comes within
// rawOptions.wait.
func (g *suiteGuest) wait(vector int) {
	g.bell(irqDoorbells+uint32(vector), irqEnable)
	fds := [1]unix.PollFd{{Fd: int32(g.irqs[vector].fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], int(g.o.wait.Milliseconds()))
	if n == 0 || err != nil && err != unix.EINTR {
		g.Helper()
		g.Fatalf("vector %d of %s: nothing for %v, %v; errors: %v", vector, g.Port().Name(), g.o.wait, err, g.errs)
	}
	g.irqs[vector].fired()
}

// driverRing is the common part of rxDriver and txDriver.
type driverRing struct {
	g            *suiteGuest
	params       ringParams
	ring, compl  []byte
	mask         uint32
	posted, seen uint32 // descriptors posted and completions read since the start
	doorbells    uint32 // index of the queue's doorbell
}

// newRing allocates a queue's two rings, zeroed.
func (g *suiteGuest) newRing(descLen, complLen, vector int, doorbells uint32) driverRing {
	g.Helper()
	n := g.o.ring
	desc, compl := g.alloc(n*descLen), g.alloc(n*complLen)
	return driverRing{g: g, mask: uint32(n - 1), ring: g.bytes(desc, n*descLen), compl: g.bytes(compl, n*complLen),
		params: ringParams{desc: desc, compl: compl, size: n, complSize: n, notify: vector}, doorbells: doorbells}
}

func (d *driverRing) doorbell() { d.g.bell(d.doorbells, d.posted&d.mask) }

// lap returns bit, the generation bit, if it will be set in the next completion, else 0.
func (d *driverRing) lap(bit uint32) uint32 {
	if d.seen&(d.mask+1) == 0 {
		return bit
	}
	return 0
}

// rxDriver is a driver's end of a receive queue.
type rxDriver struct {
	driverRing
	split  bool
	header uint64 // address of the first header buffer; 0 without split
	addrs  []uint64
}

// startRx destroys receive queue i, if it exists, and creates it with new rings; they lie where the old ones were if
// the test has set Next back.
func (g *suiteGuest) startRx(i int, split bool) {
	g.Helper()
	if g.dev.res.rx[i].live {
		g.pass(opDestroyRx, uint32(i))
	}
	d := &rxDriver{driverRing: g.newRing(rxBufLen, rxComplLen, g.o.pairs+i, rxDoorbells+uint32(i)), split: split,
		addrs: make([]uint64, g.o.ring)}
	c := rxCommand{ID: uint32(i), Block: uint32(d.params.notify), Resources: g.doorbellAt, Compl: d.params.compl,
		Ring: d.params.desc, Pages: rawAddresses, ComplSize: uint16(g.o.ring),
		Buf: uint16(cmp.Or(g.o.named, packetBuffer)), Size: uint16(g.o.ring),
		RSC: pick(g.o.rsc, 1)}
	if split {
		c.Header = rawHeader
		d.header, _ = g.Alloc(g.o.ring * rawHeader)
	}
	g.pass(opCreateRx, c)
	if p := g.dev.rx[i].p; p.bufSize != g.o.bufSize { // for sizes that the command refuses, or does not name
		p.bufSize = g.o.bufSize
		g.OK(g.dev.rx[i].start(p))
	}
	g.rxd[i] = d
}

// post writes the descriptor of a buffer at addr; doorbell shows it to the device.
func (d *rxDriver) post(addr uint64) {
	slot := d.posted & d.mask
	b := rxBuf{id: uint16(slot) ^ 0x55, addr: addr}
	if d.split {
		b.header = d.header + uint64(slot)*rawHeader
		h := d.g.RAM[b.header:][:rawHeader]
		for i := range h {
			h[i] = poison
		}
	}
	d.addrs[slot] = addr
	b.encode((*[rxBufLen]byte)(d.ring[slot*rxBufLen:]))
	d.posted++
}

// poll decodes the next completion to c; false: there is none.
func (d *rxDriver) poll(c *rxCompl) bool {
	b := d.compl[d.seen&d.mask*rxComplLen:][:rxComplLen]
	if dma.LoadWord(b[4:])&rxGeneration != d.lap(rxGeneration) {
		return false
	}
	c.decode((*[rxComplLen]byte)(b))
	if want := uint16(d.seen&d.mask) ^ 0x55; c.id != want {
		d.g.Errorf("completion %d is of buffer %d, not %d", d.seen, c.id, want)
	}
	d.seen++
	return true
}

// next waits for a completion, decodes it to c, and returns the addresses of its buffer and, on a split queue, of its
// header buffer.
func (d *rxDriver) next(c *rxCompl) (buf, header uint64) {
	d.g.Helper()
	slot := d.seen & d.mask
	for !d.poll(c) {
		d.g.wait(d.params.notify)
	}
	return d.addrs[slot], d.header + uint64(slot)*rawHeader
}

// Post posts buffers: on a split queue n pages of the GPU; otherwise about n times 17 KiB of RAM, but no more buffers
// than the ring has room for.
func (g *suiteGuest) Post(q, n int) {
	g.Helper()
	d := g.rxd[q]
	if !d.split {
		n = min((maxRxBufs*n*4096/g.o.bufSize+3)/4, int(d.mask-(d.posted-d.seen)))
	}
	for range n {
		if d.split {
			d.post(g.PayloadPage())
		} else {
			addr, _ := g.Alloc(g.o.bufSize)
			d.post(addr)
		}
	}
	d.doorbell()
}

// Receive waits for a frame, and assembles it as Linux does (gve_rx_dqo).
func (g *suiteGuest) Receive(q int) (f nictest.Frame) {
	g.Helper()
	d := g.rxd[q]
	for c := (rxCompl{}); !c.eop; {
		buf, header := d.next(&c)
		if c.bad {
			g.Fatalf("buffer %#x came back as bad", buf)
		}
		clean := g.At(header)[:rawHeader]
		if !c.split && c.headerLen != 0 || c.overflow && f.Buffers > 0 {
			g.Errorf("buffer %d: %+v", f.Buffers, c)
		}
		if c.split {
			if f.Buffers > 0 || c.headerLen == 0 || c.headerLen > rawHeader {
				g.Fatalf("header of %d bytes with buffer %d", c.headerLen, f.Buffers)
			}
			f.Split = true
			f.Header = bytes.Clone(clean[:c.headerLen])
			clean = clean[c.headerLen:]
		}
		for i := 0; d.split && i < len(clean); i++ {
			f.Dirty = f.Dirty || clean[i] != poison
		}
		f.Payload = append(f.Payload, g.At(buf)[:c.length]...)
		f.Buffers++
		f.Good = c.checked && !c.ipBad && !c.l4Bad
		if c.segLen != 0 {
			f.MSS = c.segLen
			if f.GSO = splitter.GSOTCPv4; c.ptype>>4 == l3IPv6 {
				f.GSO = splitter.GSOTCPv6
			}
		}
	}
	if !f.Split {
		f.Header, f.Payload = f.Payload, nil
	}
	return f
}

// txDriver is a driver's end of a transmit queue.
type txDriver struct {
	driverRing
	head       uint32 // ring index up to which the device has reported descriptors as read
	lastReport uint32
	tag        uint16
	flight     int // packets not completed
}

// startTx destroys transmit queue i, if it exists, and creates it with new rings, as startRx does.
func (g *suiteGuest) startTx(i int) {
	g.Helper()
	if g.dev.res.tx[i].live {
		g.pass(opDestroyTx, uint32(i))
	}
	d := &txDriver{driverRing: g.newRing(txDescLen, txComplLen, i, txDoorbells+uint32(i))}
	g.pass(opCreateTx, txCommand{ID: uint32(i), Resources: g.doorbellAt, Ring: d.params.desc, Pages: rawAddresses,
		Block: uint32(i), Compl: d.params.compl, Size: uint16(g.o.ring), ComplSize: uint16(g.o.ring)})
	g.txd[i] = d
}

// add writes a descriptor; doorbell shows it to the device. At a packet's end add requests a descriptor completion if
// it has requested none for 32 descriptors.
func (d *txDriver) add(x txDesc) {
	if x.kind == txPacket && x.eop && (d.posted-d.lastReport)&d.mask >= 32 {
		x.report = true
		d.lastReport = d.posted
	}
	x.encode((*[txDescLen]byte)(d.ring[d.posted&d.mask*txDescLen:]))
	d.posted++
}

// packet adds the descriptors of one packet, and shows them to the device. A descriptor without a kind becomes a
// txPacket.
func (d *txDriver) packet(ds ...txDesc) {
	for i, x := range ds {
		x.kind = cmp.Or(x.kind, txPacket)
		x.eop = i == len(ds)-1
		d.add(x)
	}
	d.flight++
	d.doorbell()
}

// room returns how many descriptors may be added.
func (d *txDriver) room() int { return int(d.mask - (d.posted-d.head)&d.mask) }

// poll reads the next completion. some is false if there is none; packet: it is a packet completion.
func (d *txDriver) poll() (some, packet bool) {
	b := d.compl[d.seen&d.mask*txComplLen:][:txComplLen]
	word := dma.LoadWord(b)
	if word&txGeneration != d.lap(txGeneration) {
		return false, false
	}
	d.seen++
	if word&0x7ff != d.doorbells-txDoorbells || le.Uint32(b[4:]) != 0 {
		d.g.Errorf("completion %#x %#x", word, b[4:])
	}
	switch word >> 11 & 7 {
	case txPacketDone:
		d.flight--
		return true, true
	case txDescDone:
		if d.head = word >> 16; d.head > d.mask {
			d.g.Errorf("descriptors are read up to %d of %d", d.head, d.mask+1)
		}
	default:
		d.g.Errorf("completion of type %d", word>>11&7)
	}
	return true, false
}

// Add adds a frame to a transmit ring, as Linux does (gve_tx_add_skb_dqo). Show rings the doorbell.
func (g *suiteGuest) Add(q int, f *nictest.Frame, gpu bool) {
	g.Helper()
	d := g.txd[q]
	d.tag = (d.tag + 1) % 0x8000
	addr, head := g.Alloc(len(f.Header))
	copy(head, f.Header)
	if f.GSO != splitter.GSONone {
		d.add(txDesc{kind: txTSO, tso: true, total: uint32(len(f.Payload)), mss: f.MSS, headerLen: uint8(len(f.Header))})
		l4 := len(f.Header) - int(f.Start) + len(f.Payload) // a TSO packet's partial checksum leaves out the length
		b := head[f.Start+f.Offset:]
		be.PutUint16(b, splitter.Add(be.Uint16(b), ^splitter.Add(uint16(l4>>16), uint16(l4))))
	}
	d.add(txDesc{kind: txGeneral})
	x := txDesc{kind: txPacket, tag: d.tag, csum: f.Partial, addr: addr, length: uint16(len(head)),
		eop: len(f.Payload) == 0}
	d.add(x)
	if n := len(f.Payload); n > 0 {
		x.addr = g.PutPayload(f.Payload, gpu)
		for n > 0 {
			k := min(n, 1<<14-1)
			n -= k
			x.length, x.eop = uint16(k), n == 0
			d.add(x)
			x.addr += uint64(k)
		}
	}
	d.flight++
}

func (g *suiteGuest) Show(q int) { g.txd[q].doorbell() }

// Sent implements nictest.Guest.
func (g *suiteGuest) Sent(q int) {
	g.Helper()
	for d := g.txd[q]; d.flight > 0; {
		if some, _ := d.poll(); !some {
			g.wait(d.params.notify)
		}
	}
}
