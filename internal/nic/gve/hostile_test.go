package gve

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Invariant: nic/gve: Bad frames are dropped, and a bad receive buffer comes back marked.
func TestBadReceiveBufferComesBack(t *testing.T) {
	for name, c := range map[string]struct {
		split        bool
		good         int // good buffers before the bad one
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
			w.Bad.SetSplit(0, c.split)
			d := w.Bad.rxd[0]
			for range c.good {
				d.post(rawGPU + rawGPUSize/2)
			}
			off := d.posted & d.mask * rxBufLen
			d.post(c.addr)
			if c.header != 0 {
				le.PutUint64(d.ring[off+16:], c.header)
			}
			d.doorbell()
			w.A.Send(0, tcp(w.A, w.Bad, 5000*c.good+100)) // dropped, not held
			for i := range c.good + 1 {
				var x rxCompl
				if d.next(&x); !x.bad || x.length != 0 || x.split {
					t.Errorf("completion %d: %+v", i, x)
				}
			}
			rx, _ := w.Bad.Port().QueueCounters(0)
			if rx.Drops != 1 || w.Bad.dev.rx[0].count.badBuffer.get() != 1 || w.Bad.failure("rx0") != nil {
				t.Errorf("%+v, %d", rx, w.Bad.dev.rx[0].count.badBuffer.get())
			}
			w.A.sendsTo(w.Bad, 0, 600)
			w.Moves(t)
		})
	}
}

// Invariant: nic/gve: A frame without enough buffers reads none of them.
func TestRefusedFramesReadNoBuffer(t *testing.T) {
	w := newWorld(t)
	d, q, worker := w.Bad.rxd[0], w.Bad.dev.rx[0], wire.NewWorker()
	d.post(1 << 45) // unmapped: the device returns it as bad if a frame of one buffer comes
	d.doorbell()
	for i := range 1000 {
		v := nictest.Deliver(t, w.Bad, worker, 5000+i)
		if v.Kind != wire.Busy || q.count.badBuffer.get() != 0 || q.count.noBuffer.get() != uint64(i+1) {
			t.Fatalf("frame %d: %v, %d bad buffers, %d times too few", i, v, q.count.badBuffer.get(), q.count.noBuffer.get())
		}
	}
	if v := nictest.Deliver(t, w.Bad, worker, 100); v.Kind != wire.Dropped || q.count.badBuffer.get() != 1 {
		t.Errorf("frame for one buffer: %v, %d bad buffers", v, q.count.badBuffer.get())
	}
	w.Moves(t)
}

// A queue does not start with an invalid ring, or a receive queue with invalid buffer sizes.
func TestBadRingsAreRefused(t *testing.T) {
	w := newWorld(t)
	g := w.Bad
	// "off its page" needs a second region behind the RAM: that ring crosses into it, and is not page aligned.
	g.OK(g.space.Add(dma.Map{IOVA: rawMem, Size: 4096, FD: g.FD, FileOffset: 4096}))
	g.OK(g.space.Add(dma.Map{IOVA: 1 << 36, Size: 64 << 10, FD: g.FD, ReadOnly: true}))
	g.OK(g.space.Add(dma.Map{IOVA: 1 << 37, Size: 64 << 10, FD: -1, NoAccess: true}))
	rx, tx := g.dev.rx[1].p, g.txd[1].params
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
			err := g.dev.rx[1].start(p)
			if err == nil {
				t.Error("a receive queue started")
			}
			q := p.ringParams
			if p.bufSize != rx.bufSize || p.headerSize != rx.headerSize || p.complSize == 256 {
				return
			}
			if q.desc == rx.desc {
				q.desc = tx.desc
			}
			if q.compl == rx.compl {
				q.compl = tx.compl
			}
			if err := g.dev.tx[1].start(q); err == nil {
				t.Error("a transmit queue started")
			}
		})
	}
	g.startRx(1, false)
	g.startTx(1)
	g.sendsTo(w.A, 1, 100)
	w.Moves(t)
}

// With an IOMMU, successive pages of a ring may lie anywhere in guest memory.
//
// Invariant: nic/gve: Rings wrap, and may lie in scattered pages.
func TestRingsOfScatteredPages(t *testing.T) {
	w := newWorld(t)
	g := w.Bad
	const pages, base = 8, 1 << 38
	scatter := func(n int) (iova uint64, mem []byte) { // mem has the pages in the ring's order
		from, _ := g.Alloc(2 * pages * 4096)
		iova = base + from
		for i := range n {
			g.OK(g.space.Add(dma.Map{IOVA: iova + uint64(i)*4096, Size: 4096, FD: g.FD, FileOffset: from +
				uint64(2*(n-1-i))*4096}))
		}
		virt, err := unix.Mmap(-1, 0, n*4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		g.OK(err)
		for i := range n {
			mapFixed(t, virt[i*4096:], g.FD, int64(from)+int64(2*(n-1-i))*4096)
		}
		t.Cleanup(func() { _ = unix.Munmap(virt) })
		return iova, virt
	}
	g.startRx(0, false)
	d := g.rxd[0]
	p := g.dev.rx[0].p
	p.desc, d.ring = scatter(rawRing * rxBufLen / 4096)
	p.compl, d.compl = scatter(rawRing * rxComplLen / 4096)
	g.OK(g.dev.rx[0].start(p))
	g.startTx(0)
	x := g.txd[0]
	q := x.params
	q.desc, x.ring = scatter(rawRing * txDescLen / 4096)
	q.compl, x.compl = scatter(rawRing * txComplLen / 4096)
	g.OK(g.dev.tx[0].start(q))
	for i := range 2 * rawRing {
		buf := uint64(16<<20 + i%64*4096)
		d.post(buf)
		d.doorbell()
		f := tcp(w.A, g, i)
		w.A.Next = 4 << 20 // A reuses its memory
		w.A.Send(0, f)
		arrives(t, g, 0, &f)
		w.A.Post(0, 1)
		f = tcp(g, w.A, i)
		g.Next = 24 << 20
		g.Send(0, f)
		arrives(t, w.A, 0, &f)
	}
	w.Moves(t)
}

// Packets before a bad descriptor are sent, the queue works after a restart, and the other NICs do not stop.
//
// Invariant: nic/gve: A bad descriptor stops its queue only, and the device asks for a reset.
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
			w.A.Post(0, 1)
			good := tcp(w.Bad, w.A, 50)
			w.Bad.Add(0, &good, false)
			for _, d := range ds {
				w.Bad.txd[0].add(d)
			}
			w.Bad.txd[0].doorbell()
			arrives(t, w.A, 0, &good)
			w.Bad.broken("tx0", errBadDesc)
			w.Bad.txd[0].doorbell() // has no effect, as no worker runs
			w.Moves(t)
			w.Bad.startTx(0)
			w.A.Post(0, 1)
			w.Bad.Send(0, good)
			arrives(t, w.A, 0, &good)
		})
	}
}

func repeat(d txDesc, n int) (ds []txDesc) {
	for range n {
		ds = append(ds, d)
	}
	return ds
}

// A driver may write a counter that does not wrap with the ring, as iPXE does.
func TestDoorbellIsTakenModuloTheRing(t *testing.T) {
	w := newWorld(t)
	for _, counter := range []uint32{0, 3 * rawRing, 1<<31 - rawRing, ^uint32(0) - rawRing + 1} {
		prefix := fmt.Sprintf("counters from %d on: ", counter)
		w.Bad.startRx(0, false)
		w.Bad.startTx(0)
		rx, tx := w.Bad.rxd[0], w.Bad.txd[0]
		addr, _ := w.Bad.Alloc(4096)
		for range rawRing/64 + 3 { // around the ring
			for range 64 {
				rx.post(addr)
			}
			w.Bad.bell(rx.doorbells, counter+rx.posted)
			for range 64 {
				w.A.Send(0, tcp(w.A, w.Bad, 100))
				var c rxCompl
				if !rx.poll(&c) {
					t.Fatal(prefix, "a frame did not arrive")
				}
			}
		}
		for range rawRing/3 + 1 { // three descriptors each
			w.A.Post(0, 1)
			f := tcp(w.Bad, w.A, 100)
			w.Bad.Add(0, &f, false)
			w.Bad.bell(tx.doorbells, counter+tx.posted)
			w.Bad.Sent(0)
			arrives(t, w.A, 0, &f)
		}
		// With a tail beyond the ring, Pending would always be true, and the worker would spin.
		testkit.Equal(t, prefix+"where descriptors end", w.Bad.dev.tx[0].tail.Load(), tx.posted&tx.mask)
		testkit.Equal(t, prefix+"queues that stopped", w.Bad.dev.Failures(), 0)
	}
	w.Moves(t)
}

// A doorbell that jumps harms only the driver that wrote it.
//
// Invariant: nic/gve: A bad descriptor stops its queue only, and the device asks for a reset.
func TestBadDoorbell(t *testing.T) {
	w := newWorld(t)
	w.A.Send(0, tcp(w.A, w.Bad, 100))
	w.Bad.Post(0, 4)
	w.Bad.bell(rxDoorbells, 0) // takes the posted buffers back
	for _, tail := range []uint32{rawRing - 1, 0, 5, 1, rawRing, ^uint32(0)} {
		w.Bad.bell(rxDoorbells, tail)
		w.A.Send(0, tcp(w.A, w.Bad, 100))
	}
	w.Bad.bell(txDoorbells, 2*rawRing-1) // descriptors of zeros
	w.Bad.broken("tx0", errBadDesc)
	w.Moves(t)
}

func TestPacketInParts(t *testing.T) {
	w := newWorld(t)
	w.A.Post(0, 8)
	f := tcp(w.Bad, w.A, 40000)
	f.GSO, f.MSS = splitter.GSOTCPv4, 1460
	for range 3 {
		d := w.Bad.txd[0]
		posted := d.posted
		w.Bad.Add(0, &f, false)
		for ; posted != d.posted; posted++ {
			w.Bad.dev.tx[0].doorbell((posted + 1) & d.mask)
			for range 10 {
				runtime.Gosched()
			}
		}
		w.Bad.Sent(0)
		arrives(t, w.A, 0, &f)
	}
	w.Moves(t)
}

// Invariant: nic/gve: Bad frames are dropped, and a bad receive buffer comes back marked.
func TestBadFramesAreDropped(t *testing.T) {
	w := newWorld(t)
	d := w.Bad.txd[0]
	addr, mem := w.Bad.Alloc(1 << 20)
	f := tcp(w.Bad, w.A, 8000)
	copy(mem, f.Bytes())
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
		{tso(0, 1448, 54, true), {addr: addr, length: 54}},       // its IP header claims more
		{tso(0, 1448, 14, true), {addr: addr + 100, length: 60}}, // not IP
		{{addr: 1 << 45, length: 100}}, {{addr: addr, length: 54}, {addr: 1 << 45, length: 8000}},
		{{addr: rawMem - 10, length: 100}},
		{{addr: ^uint64(0), length: 100}},
	}
	count := &w.Bad.dev.tx[0].count
	for i, ds := range bad {
		before := count.bad.get() + count.unmapped.get()
		link := w.Bad.Port().Link().Counters()
		_, queue := w.Bad.Port().QueueCounters(0)
		d.packet(ds...)
		w.Bad.Sent(0)
		testkit.Equal(t, fmt.Sprint(i, ": counted as bad"), count.bad.get()+count.unmapped.get(), before+1)
		after := w.Bad.Port().Link().Counters()
		testkit.Equal(t, fmt.Sprint(i, ": sent"), after.Sent, link.Sent)
		_, tx := w.Bad.Port().QueueCounters(0)
		testkit.Equal(t, fmt.Sprint(i, ": drops of the queue"), tx.Drops, queue.Drops+1)
		reasons := func(c wire.Counters) uint64 { return c.Drops[wire.DropBadFrame] + c.Drops[wire.DropFault] }
		testkit.Equal(t, fmt.Sprint(i, ": with a reason"), reasons(after), reasons(link)+1)
	}
	w.A.Post(0, 1)
	w.Bad.Send(0, f)
	arrives(t, w.A, 0, &f)
	testkit.NoError(t, w.Bad.failure("tx0"))
	w.Moves(t)
}

// The device drops a frame with a buffer in more regions than a buffer can touch pages (maxPieces).
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue hold, more than the descriptors of
// one frame.
func TestTooManyPiecesAreNoBuffer(t *testing.T) {
	w := newWorld(t)
	g := w.Bad
	const n, tiny, paged = 2000, 1 << 36, 1 << 37
	from, mem := g.Alloc(n)
	for i := range uint64(n) {
		g.OK(g.space.Add(dma.Map{IOVA: tiny + i, Size: 1, FD: g.FD, FileOffset: from + i}))
	}
	pages, pmem := g.Alloc(5 * 4096)
	for i := range uint64(5) {
		g.OK(g.space.Add(dma.Map{IOVA: paged + i*4096, Size: 4096, FD: g.FD, FileOffset: pages + i*4096}))
	}
	d := g.txd[0]
	f := tcp(g, w.A, 5)
	copy(mem, f.Payload)
	head, hmem := g.Alloc(len(f.Header))
	copy(hmem, f.Header)
	send := func(ds ...txDesc) (dropped bool) {
		t.Helper()
		before := g.dev.tx[0].count.unmapped.get()
		d.packet(ds...)
		g.Sent(0)
		return g.dev.tx[0].count.unmapped.get() != before
	}
	start := txDesc{addr: head, length: uint16(len(hmem)), csum: f.Partial}
	w.A.Post(0, 4)
	if send(start, txDesc{addr: tiny, length: maxPieces}) {
		t.Error("a buffer in 5 pieces is dropped")
	}
	arrives(t, w.A, 0, &f)
	if !send(start, txDesc{addr: tiny, length: maxPieces + 1}) {
		t.Error("a buffer in 6 pieces is sent")
	}
	tso := txDesc{kind: txTSO, tso: true, total: 63 * 1000, mss: 1448, headerLen: uint8(len(hmem))}
	for range txBatch {
		if !send(append([]txDesc{tso, start}, repeat(txDesc{addr: tiny, length: 1000}, maxTSOBufs-1)...)...) {
			t.Error("63000 pieces are sent")
		}
	}
	g.dev.tx[0].stop()
	for i, s := range g.dev.tx[0].slots {
		if room := max(cap(s.segs), cap(g.dev.tx[0].sender.Frames()[i].Packet.Payload)); room > 2*maxTSOBufs*maxPieces {
			t.Errorf("slot %d has room for %d segments", i, room)
		}
	}
	g.startTx(0)

	// The longest buffer, at the worst offset.
	d = g.txd[0]
	f = tcp(g, w.A, rxMaxLen)
	f.GSO, f.MSS = splitter.GSOTCPv4, 1448
	g.Add(0, &f, false)
	copy(pmem[4095:], f.Payload)
	le.PutUint64(d.ring[((d.posted-1)&d.mask)*txDescLen:], paged+4095)
	d.doorbell()
	g.Sent(0)
	arrives(t, w.A, 0, &f)

	rx := g.rxd[0]
	for _, c := range []struct {
		payload int
		bad     bool
	}{{n - 54, true}, {0, true}} {
		rx.post(tiny)
		rx.doorbell()
		w.A.Send(0, tcp(w.A, g, c.payload))
		var x rxCompl
		if rx.next(&x); x.bad != c.bad {
			t.Errorf("received into %d pieces: %+v", 54+c.payload, x)
		}
	}
	g.dev.rx[0].Lock()
	place := &g.dev.rx[0].frame
	room := max(cap(place.buffers), cap(place.payload), cap(place.whole))
	g.dev.rx[0].Unlock()
	if room > 2*maxRxBufs*maxPieces {
		t.Errorf("room for %d segments", room)
	}
	w.A.sendsTo(g, 0, 600)
	w.Moves(t)
}

// mapFixed maps a page of a file over the page at b.
func mapFixed(t *testing.T, b []byte, fd int, off int64) {
	t.Helper()
	if _, err := unix.MmapPtr(fd, off, unsafe.Pointer(&b[0]), 4096, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		t.Fatal(err)
	}
}
