package gve

import (
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// fuzzGuests makes a guest whose rings are attacked, with frames in its memory at the addresses frames, and a guest
// that receives from it.
func fuzzGuests(f *testing.F) (bad, other *suiteGuest, frames map[string]uint64) {
	w := newBareWorld(f, rawOptions{pairs: 1, mtu: 9000, p2p: true, rsc: true})
	frames = map[string]uint64{}
	for name, fr := range map[string]nictest.Frame{
		"tcp": tcp(w.Bad, w.A, 3000), "big": tcp(w.Bad, w.A, 60000),
		"udp":  nictest.Make(w.A.mac, w.Bad.mac, nictest.Spec{UDP: true, Payload: 500}),
		"v6":   nictest.Make(w.A.mac, w.Bad.mac, nictest.Spec{V6: true, Ext: 64, Opts: 12, Payload: 2000}),
		"vlan": nictest.Make(w.A.mac, w.Bad.mac, nictest.Spec{VLANs: 2, Payload: 70}),
	} {
		addr, mem := w.Bad.Alloc(len(fr.Header) + len(fr.Payload))
		copy(mem, fr.Bytes())
		frames[name] = addr
	}
	return w.Bad, w.A, frames
}

// FuzzTransmitRing gives a transmit queue arbitrary descriptors and doorbells: the data are a byte for each doorbell,
// 32 at most, the byte 0xff, and descriptors.
//
// Invariant: nic/gve: A bad descriptor stops its queue only, and the device asks for a reset.
func FuzzTransmitRing(f *testing.F) {
	g, other, frames := fuzzGuests(f)
	desc := func(ds ...txDesc) (b []byte) {
		for _, d := range ds {
			var e [txDescLen]byte
			d.encode(&e)
			b = append(b, e[:]...)
		}
		return b
	}
	packet := func(name string, n int) txDesc {
		return txDesc{kind: txPacket, addr: frames[name], length: uint16(n), eop: true, csum: true, report: true, tag: 7}
	}
	part := func(d txDesc) txDesc { d.eop = false; return d }
	shift := func(d txDesc, off uint64) txDesc { d.addr += off; return d }
	general := txDesc{kind: txGeneral}
	f.Add(append([]byte{2, 0xff}, desc(general, packet("tcp", 3054))...))
	f.Add(append([]byte{1, 2, 3, 4, 0xff}, desc(packet("udp", 542), packet("v6", 2150), packet("vlan", 132), general)...))
	f.Add(append([]byte{6, 0xff}, desc(txDesc{kind: txTSO, tso: true, total: 3000, mss: 1448, headerLen: 54}, general,
		part(packet("tcp", 54)), part(shift(packet("tcp", 1000), 54)), shift(packet("tcp", 2000), 1054))...))
	f.Add(append([]byte{1, 5, 9, 63, 2, 0xff}, desc(part(packet("big", 16383)), part(packet("big", 0)),
		packet("tcp", 13))...))
	f.Add(append([]byte{9, 0xff}, desc(txDesc{kind: txPacket, addr: ^uint64(0), length: 99, eop: true},
		txDesc{kind: 3})...))
	desc64, ring := g.Alloc(64 * txDescLen)
	compl64, compl := g.Alloc(64 * txComplLen)
	_, canary := g.Alloc(4096)
	q := g.dev.tx[0]
	q.stop()
	dma.Guard()
	f.Fuzz(func(t *testing.T, data []byte) {
		g.TB, other.TB = t, t
		dma.Guard()
		clear(ring)
		clear(compl)
		var tails []byte
		for len(data) > 0 && data[0] != 0xff && len(tails) < 32 {
			tails, data = append(tails, data[0]), data[1:]
		}
		copy(ring, data[min(1, len(data)):])
		p := ringParams{desc: desc64, compl: compl64, size: 64, complSize: 64}
		g.OK(q.rings.pin(g.space, &p, "", txDescLen, txComplLen))
		q.block, q.head, q.compl, q.partly = p.notify, 0, 0, noTail
		read := uint32(0)
		for _, tail := range tails { // the worker's rounds run on this goroutine
			read += (uint32(tail) - q.head) & q.in.mask
			q.tail.Store(uint32(tail) & q.in.mask)
			var err error
			for n := 1; n > 0 && err == nil; {
				n, err = q.sender.Round(false)
			}
			if err != nil {
				break
			}
		}
		q.sender.Release()
		if q.head > read || q.compl > 2*q.head {
			t.Errorf("%d descriptors posted, %d read, %d completions", read, q.head, q.compl)
		}
		for _, b := range canary {
			if b != 0 {
				t.Fatal("memory behind the completion ring was written")
			}
		}
		q.rings.close()
		for c := (rxCompl{}); other.rxd[0].poll(&c); {
		}
		fuzzMoves(t, g, other)
	})
}

// fuzzMoves restarts g's transmit queue and other's receive queue, and checks that a frame of g arrives at other.
// Then it stops g's queue.
func fuzzMoves(t *testing.T, g, other *suiteGuest) {
	t.Helper()
	gn, on := g.Next, other.Next
	g.startTx(0)
	other.startRx(0, false)
	// g may have sent a frame from other's address: this one makes the switch send to other again.
	other.Send(0, nictest.Make(nictest.Everyone, other.mac, nictest.Spec{}))
	fr := tcp(g, other, 100)
	other.Post(0, 1)
	g.Send(0, fr)
	arrives(t, other, 0, &fr)
	g.dev.tx[0].stop()
	g.Next, other.Next = gn, on
}

// FuzzReceiveRing gives a receive queue arbitrary buffers, sizes, doorbells and frames: the data are two bytes of
// buffer size, one whose lowest bit turns header buffers on, a byte for each step (a doorbell, or, from 0xc0 on, a
// frame), 64 at most, the byte 0xff, and buffer descriptors.
//
// Invariant: nic/gve: A bad descriptor stops its queue only, and the device asks for a reset.
func FuzzReceiveRing(f *testing.F) {
	g, other, _ := fuzzGuests(f)
	bufs := func(bs ...rxBuf) (b []byte) {
		for _, d := range bs {
			var e [rxBufLen]byte
			d.encode(&e)
			b = append(b, e[:]...)
		}
		return b
	}
	f.Add(append([]byte{0, 16, 0, 4, 0xc0, 0xc1, 0xff}, bufs(rxBuf{1, 16 << 20, 0}, rxBuf{2, 17 << 20, 0},
		rxBuf{3, 18 << 20, 0}, rxBuf{4, 19 << 20, 0})...))
	f.Add(append([]byte{0, 8, 1, 3, 0xc0, 0xc2, 0xc3, 0xff},
		bufs(rxBuf{1, rawGPU, 16 << 20}, rxBuf{2, rawGPU + 4096, 17 << 20}, rxBuf{3, 1 << 50, 18 << 20})...))
	f.Add([]byte{0, 0, 0, 1, 0xc0})
	f.Add([]byte{1, 0, 1, 63, 0xc4, 0xc5, 0xc6, 5, 0xc0})
	f.Add([]byte{0xff, 0xff, 1, 63, 0xc0})
	w := wire.NewWorker()
	var pkts []*wire.Packet
	for _, s := range []nictest.Spec{{Payload: 3000}, {Payload: 60000}, {UDP: true, Payload: 100},
		{UDP: true, Payload: 1000},
		{V6: true, Ext: 144, Opts: 40, Payload: 10}, {Payload: 0}, {VLANs: 2, Payload: 5}, {Payload: 8000, Opts: 40}} {
		fr := nictest.Make(g.mac, other.mac, s)
		p := &wire.Packet{Header: fr.Header, PayloadLen: uint32(len(fr.Payload))}
		p.Payload = []dma.Segment{{Region: dma.NewBuffer(fr.Payload, dma.Host), Len: p.PayloadLen}}
		g.OK(splitter.Parse(fr.Header, p.Len(), &p.Meta.Headers))
		p.Meta.Csum, p.Meta.CsumStart, p.Meta.CsumOffset = splitter.CsumPartial, fr.Start, fr.Offset
		if s.Payload > 9000 {
			p.Meta.GSOType, p.Meta.GSOSize = splitter.GSOTCPv4, 1448
		}
		pkts = append(pkts, p)
	}
	desc, ring := g.Alloc(64 * rxBufLen)
	compl, done := g.Alloc(64 * rxComplLen)
	_, canary := g.Alloc(4096)
	q := g.dev.rx[0]
	f.Fuzz(func(t *testing.T, data []byte) {
		g.TB, other.TB = t, t
		dma.Guard()
		if len(data) < 3 {
			return
		}
		clear(ring)
		clear(done)
		p := rxParams{ringParams: ringParams{desc: desc, compl: compl, size: 64, complSize: 64, notify: 1},
			bufSize: int(le.Uint16(data)), rsc: true}
		if data[2]&1 != 0 {
			p.headerSize = rawHeader
		}
		data = data[3:]
		if q.start(p) != nil {
			return
		}
		g.Port().SplitQueue(0, p.headerSize > 0)
		n := 0
		for n < len(data) && n < 64 && data[n] != 0xff {
			n++
		}
		copy(ring, data[min(n+1, len(data)):])
		posted := uint32(0)
		for _, op := range data[:n] {
			if op < 0xc0 {
				posted += (uint32(op) - q.tail.Load()) & 63
				q.doorbell(uint32(op))
				continue
			}
			pkt := pkts[int(op-0xc0)%len(pkts)]
			pkt.Prepare()
			g.Port().Deliver(w, []*wire.Packet{pkt})
			if pkt.Verdict.Kind == wire.Pending {
				t.Error("a frame without a verdict")
			}
		}
		if q.head != q.shown || q.head > posted {
			t.Errorf("%d buffers posted, %d used, %d shown", posted, q.head, q.shown)
		}
		clean := true
		for i := range 64 { // a buffer may overlap the rings or the canary: then the device may write there
			addr := le.Uint64(ring[i*rxBufLen+8:])
			head := le.Uint64(ring[i*rxBufLen+16:])
			clean = clean && (addr > compl+64*rxComplLen+4096 || addr+1<<14 < desc) &&
				(head > compl+64*rxComplLen+4096 || head+1024 < desc)
		}
		for _, b := range canary {
			if b != 0 && clean {
				t.Fatal("memory behind the completion ring was written")
			}
		}
		clear(canary)
		q.stop()
		for len(g.failed) > 0 {
			<-g.failed
		}
		fuzzMoves(t, g, other)
	})
}
