package gve

import (
	"bytes"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

func TestMain(m *testing.M) {
	r, w, err := os.Pipe() // the poller's own descriptors are there from now on
	if err != nil {
		panic(err)
	}
	_, _ = r.Close(), w.Close()
	goleak.VerifyTestMain(m)
}

func TestNIC(t *testing.T) { suite(t, false) }

// The same through registers, admin queue, doorbells and interrupts.
func TestNICByRegisters(t *testing.T) { suite(t, true) }

func suite(t *testing.T, device bool) {
	nictest.Run(t, func(t testing.TB, o nictest.Options) (nictest.Guest, nictest.Guest) {
		checkFDs(t)
		files := dma.NewFiles()
		sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
		t.Cleanup(func() { _ = sw.Close() })
		ro := rawOptions{pairs: 3, mtu: 9000, p2p: !o.NoP2P, rsc: true, device: device}
		a := newSuiteGuest(t, files, sw, 0, ro)
		ro.rsc = !o.NoOffload
		return a, newSuiteGuest(t, files, sw, 1, ro)
	}, nictest.Traits{OwnUnsplit: true, Completes: true, SplitStops: true})
}

// suiteGuest is a nictest.Guest over raw rings.
type suiteGuest struct{ *rawGuest }

// newSuiteGuest makes a guest with a GPU that has told the switch where it is.
func newSuiteGuest(t testing.TB, files *dma.Files, sw *wire.Switch, i int, ro rawOptions) *suiteGuest {
	t.Helper()
	ro.gpu = i
	g := &suiteGuest{newRawGuest(t, files, sw, string(rune('a'+i)), byte(i+1), ro)}
	for k := range uint64(2) {
		_, err := g.port.RegisterBuffer(control.Buffer{GPU: uint16(i), Off: k * rawGPUSize / 2, Size: rawGPUSize / 2})
		g.must(err)
	}
	everyone := wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} // dropped where there are no buffers
	f := nictest.Make(everyone, g.mac, nictest.Spec{})
	g.Send(0, f)
	return g
}

const poison = 0xee

func (g *suiteGuest) Port() *nic.Port { return g.port }
func (g *suiteGuest) MAC() wire.MAC   { return g.mac }

// Copied asks the queue's worker.
func (g *suiteGuest) Copied(q int) *dma.Counts { return g.tx[q].t.Worker.Copier.Counts() }

// SetSplit restarts a queue.
func (g *suiteGuest) SetSplit(q int, on bool) {
	g.t.Helper()
	g.startRx(q, on)
}

// Post posts buffers: a page of the GPU for each on a split queue; on others, enough for a frame.
func (g *suiteGuest) Post(q, n int) {
	g.t.Helper()
	d := g.rxd[q]
	if !d.split {
		n = min((maxRxBufs*n*4096/g.o.bufSize+3)/4, int(d.mask-(d.posted-d.seen)))
	}
	for range n {
		addr := rawGPU + g.gpuNext
		if d.split {
			g.gpuNext = (g.gpuNext + nictest.PayloadBuf) % (rawGPUSize / 2)
		} else {
			addr, _ = g.alloc(g.o.bufSize)
		}
		d.post(addr)
	}
	d.doorbell()
}

// add adds a frame to a transmit ring, as Linux does (gve_tx_add_skb_dqo).
func (g *suiteGuest) add(q int, f *nictest.Frame, gpu bool) {
	g.t.Helper()
	d := g.txd[q]
	d.tag = (d.tag + 1) % 0x8000
	addr, head := g.alloc(len(f.Header))
	copy(head, f.Header)
	if f.GSO != splitter.GSONone {
		d.add(txDesc{kind: txTSO, tso: true, total: uint32(len(f.Payload)), mss: f.MSS, headerLen: uint8(len(f.Header))})
		l4 := len(f.Header) - int(f.Start) + len(f.Payload) // the seed is without the length
		b := head[f.Start+f.Offset:]
		be.PutUint16(b, splitter.Add(be.Uint16(b), ^splitter.Add(uint16(l4>>16), uint16(l4))))
	}
	d.add(txDesc{kind: txGeneral})
	x := txDesc{kind: txPacket, tag: d.tag, csum: f.Partial, addr: addr, length: uint16(len(head)),
		eop: len(f.Payload) == 0}
	d.add(x)
	if n := len(f.Payload); n > 0 {
		addr = rawGPU + rawGPUSize/2
		if !gpu {
			addr, _ = g.alloc(n)
		}
		copy(g.at(addr), f.Payload)
		for n > 0 {
			k := min(n, 1<<14-1)
			n -= k
			x.addr, x.length, x.eop = addr, uint16(k), n == 0
			d.add(x)
			addr += uint64(k)
		}
	}
	d.flight++
}

func (g *suiteGuest) Queue(q int, fs ...nictest.Frame) {
	g.t.Helper()
	for i := range fs {
		g.add(q, &fs[i], false)
	}
	g.txd[q].doorbell()
}

func (g *suiteGuest) Sent(q int) {
	g.t.Helper()
	g.txd[q].sent()
}

func (g *suiteGuest) Send(q int, fs ...nictest.Frame) {
	g.t.Helper()
	g.Queue(q, fs...)
	g.Sent(q)
}

func (g *suiteGuest) SendGPU(q int, f nictest.Frame) {
	g.t.Helper()
	g.add(q, &f, true)
	g.txd[q].doorbell()
	g.Sent(q)
}

// Receive puts a frame together as Linux does (gve_rx_dqo).
func (g *suiteGuest) Receive(q int) (f nictest.Frame) {
	g.t.Helper()
	d := g.rxd[q]
	for c := (rxCompl{}); !c.eop; {
		buf, header := d.next(&c)
		if c.bad {
			g.t.Fatalf("buffer %#x came back as bad", buf)
		}
		clean := g.at(header)[:rawHeader]
		if !c.split && c.headerLen != 0 || c.overflow && f.Buffers > 0 {
			g.t.Errorf("buffer %d: %+v", f.Buffers, c)
		}
		if c.split {
			if f.Buffers > 0 || c.headerLen == 0 || c.headerLen > rawHeader {
				g.t.Fatalf("header of %d bytes with buffer %d", c.headerLen, f.Buffers)
			}
			f.Split = true
			f.Header = bytes.Clone(clean[:c.headerLen])
			clean = clean[c.headerLen:]
		}
		for i := 0; d.split && i < len(clean); i++ {
			f.Dirty = f.Dirty || clean[i] != poison
		}
		f.Payload = append(f.Payload, g.at(buf)[:c.length]...)
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
