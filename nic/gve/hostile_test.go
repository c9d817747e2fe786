package gve

import (
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// A world is three guests: two that behave, and one that each test is about.
type world struct {
	a, b, bad *suiteGuest
}

func newWorld(t testing.TB) *world {
	checkFDs(t)
	return newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, rsc: true})
}

// newWorldWith makes a world in which the third guest is special.
func newWorldWith(t testing.TB, o rawOptions) *world {
	files := dma.NewFiles()
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = sw.Close() })
	ro := rawOptions{pairs: 3, mtu: 9000, p2p: true, rsc: true}
	return &world{a: newSuiteGuest(t, files, sw, 0, ro), b: newSuiteGuest(t, files, sw, 1, ro),
		bad: newSuiteGuest(t, files, sw, 2, o)}
}

func tcp(from, to *suiteGuest, n int) nictest.Frame {
	return nictest.Make(to.mac, from.mac, nictest.Spec{Payload: n})
}

// arrives says that a frame came whole, its checksum complete.
func arrives(t *testing.T, g *suiteGuest, q int, f *nictest.Frame) {
	t.Helper()
	got := g.Receive(q)
	want := f.Bytes()
	var h splitter.Headers
	g.must(splitter.Parse(want, uint32(len(want)), &h))
	if f.Partial && f.GSO == splitter.GSONone {
		splitter.FixL4(&h, want[:h.HdrLen], uint32(len(f.Payload)), splitter.Sum(f.Payload, 0))
	}
	if string(got.Bytes()) != string(want) || f.Partial && !got.Good {
		t.Errorf("got %d bytes %x, good %v\nwant %d %x", len(got.Bytes()), got.Header[:min(60, len(got.Header))], got.Good,
			len(want), want[:min(60, len(want))])
	}
}

// moves shows that the two good guests still move bytes.
func (w *world) moves(t *testing.T) {
	t.Helper()
	for _, p := range [][2]*suiteGuest{{w.a, w.b}, {w.b, w.a}} {
		f := tcp(p[0], p[1], 3000)
		p[1].Post(0, 1)
		p[0].Send(0, f)
		arrives(t, p[1], 0, &f)
	}
}

// broken waits until a queue has stopped for an error.
func (g *suiteGuest) broken(t *testing.T, name string, want error) {
	t.Helper()
	select {
	case <-g.irq.failed:
	case <-time.After(time.Minute):
		t.Fatalf("%s does not fail", name)
	}
	if err := g.irq.err(name); !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", name, err, want)
	}
}

// A receive buffer that cannot be used comes back marked as bad, with the frame it was for dropped;
// the next one is used.
//
// Invariant: nic/gve: Bad frames are dropped, and a bad receive buffer comes back marked.
func TestBadReceiveBufferComesBack(t *testing.T) {
	for name, c := range map[string]struct {
		split        bool
		good         int // buffers before it
		addr, header uint64
	}{
		"unmapped":          {addr: 1 << 45},
		"beyond its region": {addr: rawMem - 64},
		"wraps":             {addr: ^uint64(0) - 63},
		"second":            {good: 1, addr: 1 << 45},
		"payload unmapped":  {split: true, addr: rawGPU + rawGPUSize},
		"payload, second":   {split: true, good: 1, addr: rawGPU + rawGPUSize - 1},
		"header unmapped":   {split: true, addr: rawGPU, header: 1 << 45},
		"header wraps":      {split: true, addr: rawGPU, header: ^uint64(0)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.bad.SetSplit(0, c.split)
			d := w.bad.rxd[0]
			for range c.good {
				d.post(rawGPU + rawGPUSize/2)
			}
			at := d.posted & d.mask * rxBufLen
			d.post(c.addr)
			if c.header != 0 {
				le.PutUint64(d.ring[at+16:], c.header)
			}
			d.doorbell()
			w.a.Send(0, tcp(w.a, w.bad, 5000*c.good+100)) // dropped, and not waited for
			for i := range c.good + 1 {
				var x rxCompl
				if d.next(&x); !x.bad || x.length != 0 || x.split {
					t.Errorf("completion %d: %+v", i, x)
				}
			}
			rx, _ := w.bad.port.QueueCounters(0)
			if rx.Drops != 1 || w.bad.rx[0].stats().drops != 1 || w.bad.irq.err("rx0") != nil {
				t.Errorf("%+v, %+v", rx, w.bad.rx[0].stats())
			}
			w.bad.Post(0, 2)
			f := tcp(w.a, w.bad, 600)
			w.a.Send(0, f)
			arrives(t, w.bad, 0, &f)
			w.moves(t)
		})
	}
}

// What cannot be a ring is refused, and nothing of it is kept.
func TestBadRingsAreRefused(t *testing.T) {
	w := newWorld(t)
	g := w.bad
	// A ring over the end of one region into another, where the memory is not that of pages.
	g.must(g.space.Add(dma.Map{IOVA: rawMem, Size: 4096, FD: g.fd, FileOffset: 4096}))
	g.must(g.space.Add(dma.Map{IOVA: 1 << 36, Size: 64 << 10, FD: g.fd, ReadOnly: true}))
	g.must(g.space.Add(dma.Map{IOVA: 1 << 37, Size: 64 << 10, FD: -1, NoAccess: true}))
	rx, tx := g.rxd[1].params, g.txd[1].params
	for name, change := range map[string]func(p *rxParams){
		"no entries":          func(p *rxParams) { p.size, p.complSize = 0, 0 },
		"one":                 func(p *rxParams) { p.size, p.complSize = 1, 1 },
		"negative":            func(p *rxParams) { p.size, p.complSize = -512, -512 },
		"not a power":         func(p *rxParams) { p.size, p.complSize = 511, 511 },
		"huge":                func(p *rxParams) { p.size, p.complSize = 1<<16, 1<<16 },
		"fewer completions":   func(p *rxParams) { p.complSize = 256 },
		"unmapped buffers":    func(p *rxParams) { p.desc = 1 << 45 },
		"unmapped completion": func(p *rxParams) { p.compl = 1 << 45 },
		"over the end":        func(p *rxParams) { p.desc = rawMem + 4096 - 32 },
		"odd":                 func(p *rxParams) { p.desc++ },
		"off its page":        func(p *rxParams) { p.compl = rawMem - 32 },
		"wraps":               func(p *rxParams) { p.desc = ^uint64(0) - 31 },
		"read-only":           func(p *rxParams) { p.compl = 1 << 36 },
		"not accessible":      func(p *rxParams) { p.compl = 1 << 37 },
		"buffers of 0":        func(p *rxParams) { p.bufSize = 0 },
		"buffers of 16 KiB":   func(p *rxParams) { p.bufSize = 1 << 14 },
		"negative buffers":    func(p *rxParams) { p.bufSize = -1 },
		"header of 1 KiB":     func(p *rxParams) { p.headerSize = 1 << 10 },
		"negative header":     func(p *rxParams) { p.headerSize = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			p := rx
			change(&p)
			err := g.rx[1].start(p)
			if err == nil {
				t.Error("a receive queue started")
			}
			q := txParams{id: 1, desc: p.desc, compl: p.compl, size: p.size, complSize: p.complSize}
			if p.bufSize != rx.bufSize || p.headerSize != rx.headerSize || p.complSize == 256 {
				return
			}
			if q.desc == rx.desc {
				q.desc = tx.desc
			}
			if q.compl == rx.compl {
				q.compl = tx.compl
			}
			if err := g.tx[1].start(q); err == nil {
				t.Error("a transmit queue started")
			}
		})
	}
	g.startRx(1, false)
	g.startTx(1)
	w.a.Post(0, 1)
	f := tcp(g, w.a, 100)
	g.Send(1, f)
	arrives(t, w.a, 0, &f)
	w.moves(t)
}

// An IOMMU maps page by page, and pages that follow one another for the device are anywhere in memory.
//
// Invariant: nic/gve: Rings wrap, and may lie in scattered pages.
func TestRingsOfScatteredPages(t *testing.T) {
	w := newWorld(t)
	g := w.bad
	const pages, base = 8, 1 << 38
	scatter := func(n int) (iova uint64, mem []byte) { // returns memory in the driver's order, as a copy of pages
		from, _ := g.alloc(2 * pages * 4096)
		iova = base + from
		for i := range n {
			g.must(g.space.Add(dma.Map{IOVA: iova + uint64(i)*4096, Size: 4096, FD: g.fd, FileOffset: from +
				uint64(2*(n-1-i))*4096}))
		}
		virt, err := unix.Mmap(-1, 0, n*4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		g.must(err)
		for i := range n {
			mapFixed(t, virt[i*4096:], g.fd, int64(from)+int64(2*(n-1-i))*4096)
		}
		t.Cleanup(func() { _ = unix.Munmap(virt) })
		return iova, virt
	}
	g.startRx(0, false)
	d := g.rxd[0]
	p := d.params
	p.desc, d.ring = scatter(rawRing * rxBufLen / 4096)
	p.compl, d.compl = scatter(rawRing * rxComplLen / 4096)
	g.must(g.rx[0].start(p))
	x := g.txd[0]
	q := x.params
	g.startTx(0)
	x = g.txd[0]
	q.desc, x.ring = scatter(rawRing * txDescLen / 4096)
	q.compl, x.compl = scatter(rawRing * txComplLen / 4096)
	g.must(g.tx[0].start(q))
	for i := range 2 * rawRing {
		buf := uint64(16<<20 + i%64*4096)
		d.post(buf)
		d.doorbell()
		f := tcp(w.a, g, i)
		w.a.next = 4 << 20 // its memory is used again
		w.a.Send(0, f)
		arrives(t, g, 0, &f)
		w.a.Post(0, 1)
		f = tcp(g, w.a, i)
		g.next = 24 << 20
		g.Send(0, f)
		arrives(t, w.a, 0, &f)
	}
	w.moves(t)
}

// A transmit ring with what is no packet stops, after what came before it is sent; nothing else does.
//
// Invariant: nic/gve: A bad descriptor or doorbell stops its queue only, and the device asks for a
// reset.
func TestBadDescriptorStopsOnlyItsQueue(t *testing.T) {
	data := txDesc{kind: txPacket, length: 8}
	for name, ds := range map[string][]txDesc{
		"unknown type":     {{kind: 0}},
		"unknown in it":    {data, {kind: 0x1f}},
		"context in it":    {data, {kind: txGeneral}},
		"TSO in it":        {data, {kind: txTSO, tso: true}},
		"two TSO":          {{kind: txTSO, tso: true}, {kind: txTSO, tso: true}},
		"three contexts":   {{kind: txGeneral}, {kind: txGeneral}, {kind: txGeneral}},
		"too many":         {data, data, data, data, data, data, data, data, data, data, data},
		"too many for TSO": append([]txDesc{{kind: txTSO, tso: true}}, repeat(data, maxTSOBufs+1)...),
		"a ring of them":   repeat(data, rawRing-20),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.a.Post(0, 1)
			good := tcp(w.bad, w.a, 50)
			w.bad.add(0, &good, false)
			for _, d := range ds {
				w.bad.txd[0].add(d)
			}
			w.bad.txd[0].doorbell()
			arrives(t, w.a, 0, &good)
			w.bad.broken(t, "tx0", errBadDesc)
			w.bad.txd[0].doorbell() // nobody is there
			w.moves(t)
			w.bad.startTx(0)
			w.a.Post(0, 1)
			w.bad.Send(0, good)
			arrives(t, w.a, 0, &good)
		})
	}
}

func repeat(d txDesc, n int) (ds []txDesc) {
	for range n {
		ds = append(ds, d)
	}
	return ds
}

// A doorbell beyond the ring stops its queue; one that jumps back is believed, and harms nobody but the driver.
//
// Invariant: nic/gve: A bad descriptor or doorbell stops its queue only, and the device asks for a
// reset.
func TestBadDoorbell(t *testing.T) {
	w := newWorld(t)
	if err := w.bad.rx[0].doorbell(rawRing); !errors.Is(err, errDoorbell) {
		t.Error(err)
	}
	w.bad.broken(t, "rx0", errDoorbell)
	if err := w.bad.tx[0].doorbell(^uint32(0)); !errors.Is(err, errDoorbell) {
		t.Error(err)
	}
	w.bad.broken(t, "tx0", errDoorbell)
	w.a.Send(0, tcp(w.a, w.bad, 100))
	w.bad.startRx(0, false)
	w.bad.startTx(0)
	w.bad.Post(0, 4)
	w.bad.must(w.bad.rx[0].doorbell(0)) // none is posted, after all
	for _, tail := range []uint32{rawRing - 1, 0, 5, 1} {
		w.bad.must(w.bad.rx[0].doorbell(tail))
		w.a.Send(0, tcp(w.a, w.bad, 100))
	}
	w.bad.must(w.bad.tx[0].doorbell(rawRing - 1)) // descriptors of zeros
	w.bad.broken(t, "tx0", errBadDesc)
	w.moves(t)
}

// The rest of a packet may be posted later.
func TestPacketInParts(t *testing.T) {
	w := newWorld(t)
	w.a.Post(0, 8)
	f := tcp(w.bad, w.a, 40000)
	f.GSO, f.MSS = splitter.GSOTCPv4, 1460
	for range 3 {
		d := w.bad.txd[0]
		at := d.posted
		w.bad.add(0, &f, false)
		for ; at != d.posted; at++ {
			w.bad.must(d.q.doorbell((at + 1) & d.mask))
			for range 10 {
				runtime.Gosched()
			}
		}
		w.bad.Sent(0)
		arrives(t, w.a, 0, &f)
	}
	w.moves(t)
}

// Frames that are none are gone, and harm nobody; so are super-packets that are not what their
// descriptor says, and frames in memory that is not there.
//
// Invariant: nic/gve: Bad frames are dropped, and a bad receive buffer comes back marked.
func TestBadFramesAreDropped(t *testing.T) {
	w := newWorld(t)
	d := w.bad.txd[0]
	addr, mem := w.bad.alloc(1 << 20)
	f := tcp(w.bad, w.a, 8000)
	copy(mem, f.Bytes())
	send := func(ds ...txDesc) {
		t.Helper()
		for i := range ds {
			if ds[i].kind == 0 {
				ds[i].kind = txPacket
			}
			ds[i].eop = i == len(ds)-1
			d.add(ds[i])
		}
		d.flight++
		d.doorbell()
		d.sent()
	}
	whole := txDesc{addr: addr, length: 8054}
	tso := func(total, mss int, header uint8, on bool) txDesc {
		return txDesc{kind: txTSO, total: uint32(total), mss: uint16(mss), headerLen: header, tso: on}
	}
	bad := [][]txDesc{
		{{addr: addr}}, {{addr: 1 << 45}}, {{addr: addr, length: 13}}, {{addr: addr, length: 0}, {addr: addr, length: 1}},
		{{addr: addr, length: 16383}, {addr: addr, length: 16383}, {addr: addr, length: 16383}, {addr: addr, length: 16383},
			{addr: addr, length: 16383}},
		{tso(8000, 1448, 53, true), whole}, {tso(7999, 1448, 54, true), whole}, {tso(8000, 87, 54, true), whole},
		{tso(8000, 9729, 54, true), whole}, {tso(8000, 0, 54, true), whole}, {tso(8000, 1448, 54, false), whole},
		{tso(0, 1448, 54, true), {addr: addr, length: 54}},       // its IP header says more
		{tso(0, 1448, 14, true), {addr: addr + 100, length: 60}}, // not IP
		{{addr: 1 << 45, length: 100}}, {{addr: addr, length: 54}, {addr: 1 << 45, length: 8000}},
		{{addr: rawMem - 10, length: 100}},
		{{addr: ^uint64(0), length: 100}},
	}
	for i, ds := range bad {
		before := w.bad.tx[0].count.bad.v.Load() + w.bad.tx[0].count.unmapped.v.Load()
		link := w.bad.port.Link().Counters().Sent
		send(ds...)
		if n := w.bad.tx[0].count.bad.v.Load() + w.bad.tx[0].count.unmapped.v.Load(); n != before+1 {
			t.Errorf("%d: not counted as bad", i)
		}
		if n := w.bad.port.Link().Counters().Sent; n != link {
			t.Errorf("%d: sent", i)
		}
	}
	w.a.Post(0, 1)
	w.bad.Send(0, f)
	arrives(t, w.a, 0, &f)
	if err := w.bad.irq.err("tx0"); err != nil {
		t.Error(err)
	}
	w.moves(t)
}

// A buffer in as many pages as one may touch is used; one over more regions, as no machine has
// pages so small, is none. Neither makes lists that are longer than those pages.
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue keep, more than a frame's worth.
func TestTooManyPiecesAreNoBuffer(t *testing.T) {
	w := newWorld(t)
	g := w.bad
	const n, tiny, paged = 2000, 1 << 36, 1 << 37
	from, mem := g.alloc(n)
	for i := range uint64(n) {
		g.must(g.space.Add(dma.Map{IOVA: tiny + i, Size: 1, FD: g.fd, FileOffset: from + i}))
	}
	pages, pmem := g.alloc(5 * 4096)
	for i := range uint64(5) {
		g.must(g.space.Add(dma.Map{IOVA: paged + i*4096, Size: 4096, FD: g.fd, FileOffset: pages + i*4096}))
	}
	d := g.txd[0]
	f := tcp(g, w.a, 5)
	copy(mem, f.Payload)
	head, hmem := g.alloc(len(f.Header))
	copy(hmem, f.Header)
	send := func(ds ...txDesc) (dropped bool) {
		t.Helper()
		before := g.tx[0].count.unmapped.v.Load()
		for i := range ds {
			if ds[i].kind == 0 {
				ds[i].kind, ds[i].csum = txPacket, f.Partial
			}
			ds[i].eop = i == len(ds)-1
			d.add(ds[i])
		}
		d.flight++
		d.doorbell()
		d.sent()
		return g.tx[0].count.unmapped.v.Load() != before
	}
	start := txDesc{addr: head, length: uint16(len(hmem))}
	w.a.Post(0, 4)
	if send(start, txDesc{addr: tiny, length: maxPieces}) {
		t.Error("a buffer in 5 pieces is dropped")
	}
	arrives(t, w.a, 0, &f)
	if !send(start, txDesc{addr: tiny, length: maxPieces + 1}) {
		t.Error("a buffer in 6 pieces is sent")
	}
	tso := txDesc{kind: txTSO, tso: true, total: 63 * 1000, mss: 1448, headerLen: uint8(len(hmem))}
	for range txBatch {
		if !send(append([]txDesc{tso, start}, repeat(txDesc{addr: tiny, length: 1000}, maxTSOBufs-1)...)...) {
			t.Error("63000 pieces are sent")
		}
	}
	g.tx[0].stop()
	for i, s := range g.tx[0].slots {
		if room := max(cap(s.segs), cap(g.tx[0].sender.Frames()[i].Packet.Payload)); room > 2*maxTSOBufs*maxPieces {
			t.Errorf("slot %d has room for %d segments", i, room)
		}
	}
	g.startTx(0)

	// The longest buffer, at the worst place.
	d = g.txd[0]
	f = tcp(g, w.a, rxMaxLen)
	f.GSO, f.MSS = splitter.GSOTCPv4, 1448
	g.add(0, &f, false)
	copy(pmem[4095:], f.Payload)
	le.PutUint64(d.ring[((d.posted-1)&d.mask)*txDescLen:], paged+4095)
	d.doorbell()
	g.Sent(0)
	arrives(t, w.a, 0, &f)

	rx := g.rxd[0]
	for _, c := range []struct {
		payload int
		bad     bool
	}{{n - 54, true}, {0, true}} {
		rx.post(tiny)
		rx.doorbell()
		w.a.Send(0, tcp(w.a, g, c.payload))
		var x rxCompl
		if rx.next(&x); x.bad != c.bad {
			t.Errorf("received into %d pieces: %+v", 54+c.payload, x)
		}
	}
	g.rx[0].Lock()
	at := &g.rx[0].frame
	room := max(cap(at.buffers), cap(at.payload), cap(at.whole))
	g.rx[0].Unlock()
	if room > 2*maxRxBufs*maxPieces {
		t.Errorf("room for %d segments", room)
	}
	g.Post(0, 2)
	f = tcp(w.a, g, 600)
	w.a.Send(0, f)
	arrives(t, g, 0, &f)
	w.moves(t)
}

// mapFixed maps a page of a file over memory that is ours.
func mapFixed(t *testing.T, at []byte, fd int, off int64) {
	t.Helper()
	if _, err := unix.MmapPtr(fd, off, unsafe.Pointer(&at[0]), 4096, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		t.Fatal(err)
	}
}
