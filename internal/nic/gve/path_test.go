package gve

import (
	"fmt"
	"net/netip"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// stream is a nictest.Stream.
type stream struct {
	a, b    *suiteGuest
	tx      []txDesc // of one frame
	tag     uint16
	payload int // bytes of a frame
	buffers int // that a frame takes
	frame   int // bytes of a frame, headers included
	ended   bool
}

const streamRing = 2048

// newStream makes two guests, and a frame for Add with a payload of so many bytes: a GSO packet if the frame would
// exceed the MTU. It posts receive buffers: pages of the GPU, with header split, if split is set, else of RAM.
func newStream(t testing.TB, payload int, split bool) *stream {
	files, sw := nictest.Switch(t)
	ro := rawOptions{pairs: 1, mtu: 1500, ring: streamRing, rsc: payload > 1460, p2p: true}
	l := &stream{a: newSuiteGuest(t, files, sw, 0, ro), b: newSuiteGuest(t, files, sw, 1, ro), payload: payload}
	f := nictest.Make(l.b.mac, l.a.mac, nictest.Spec{Payload: payload})
	l.frame = len(f.Header) + payload
	inBuffers := l.frame
	if split {
		l.b.startRx(0, true)
		inBuffers = payload
	}
	l.buffers = (inBuffers + 4095) / 4096
	if payload > 1460 {
		f.GSO, f.MSS = splitter.GSOTCPv4, 1460
	}
	d := l.a.txd[0]
	posted := d.posted
	l.a.Add(0, &f, false) // lays the frame out; below, its descriptors go to l.tx, and their slots are free again
	for ; posted != d.posted; posted++ {
		var x txDesc
		x.decode((*[txDescLen]byte)(d.ring[posted&d.mask*txDescLen:]))
		l.tx = append(l.tx, x)
	}
	d.posted -= uint32(len(l.tx))
	d.flight--
	r := l.b.rxd[0]
	for i := range min(4*nictest.StreamBatch*l.buffers, streamRing-1) {
		addr := uint64(rawGPU + i%512*4096)
		if !split {
			addr, _ = l.b.Alloc(4096)
		}
		r.post(addr)
	}
	r.doorbell()
	return l
}

func (l *stream) Ports() []*nic.Port { return []*nic.Port{l.a.Port(), l.b.Port()} }

func (l *stream) Room() int {
	d := l.a.txd[0]
	return min(4*nictest.StreamBatch-d.flight, d.room()/len(l.tx)-1)
}

func (l *stream) Add(n int) {
	d := l.a.txd[0]
	for range n {
		l.tag = (l.tag + 1) % 0x8000
		for _, x := range l.tx {
			x.tag = l.tag
			d.add(x)
		}
		d.flight++
	}
}

func (l *stream) Show() {
	d := l.a.txd[0]
	if l.ended { // a doorbell of a queue without a worker has no effect
		l.a.dev.tx[0].tail.Store(d.posted & d.mask)
		return
	}
	d.doorbell()
}

func (l *stream) Done(wait bool) (frames int) {
	d := l.a.txd[0]
	for {
		some, packet := d.poll()
		switch {
		case packet:
			frames++
		case some:
		case frames > 0 || !wait:
			return frames
		default:
			l.a.wait(d.params.notify)
		}
	}
}

func (l *stream) Take(wait bool) (frames int) {
	d := l.b.rxd[0]
	for c := (rxCompl{}); ; {
		addr := d.addrs[d.seen&d.mask]
		if !d.poll(&c) {
			d.doorbell()
			if frames > 0 || !wait {
				return frames
			}
			l.b.wait(d.params.notify)
			continue
		}
		if c.bad {
			l.b.Fatal("bad buffer")
		}
		d.post(addr)
		if c.eop {
			frames++
		}
	}
}

func (l *stream) EndWorker() {
	l.a.startTx(0)
	l.a.dev.tx[0].sender.Stop() // the queue keeps its rings
	l.ended = true
}

func (l *stream) Round() (frames int, err error) { return l.a.dev.tx[0].sender.Round(false) }

func (l *stream) Copy() (dst, src []byte) {
	return l.b.RAM[16<<20:][:l.payload], l.a.RAM[8<<20:][:l.payload]
}

// Invariant: nic: If a frame is split, exactly its headers go to the header buffer and its payload
// to other buffers; split or not, its bytes stay as they were sent, but for a checksum that the NIC
// completes.
func TestPathKeepsBytes(t *testing.T) {
	for _, payload := range []int{1, 64, 1448, 65000} {
		for _, split := range []bool{false, true} {
			t.Run(fmt.Sprint(payload, split), func(t *testing.T) {
				l := newStream(t, payload, split)
				l.Add(1)
				l.Show()
				got := l.b.Receive(0)
				b := got.Bytes()
				if len(b) != l.frame || !got.Good || got.Split != split || got.Buffers != l.buffers {
					t.Fatalf("%d bytes of %d, good %v, split %v, %d buffers", len(b), l.frame, got.Good, got.Split, got.Buffers)
				}
				f := nictest.Make(l.b.mac, l.a.mac, nictest.Spec{Payload: payload})
				testkit.Equal(t, "payload", string(b[54:]), string(f.Payload))
			})
		}
	}
}

func (l *stream) meter() {
	_, err := l.b.Port().AddFlowCounter(control.FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.2:2000"),
		Remote: netip.MustParseAddrPort("10.0.0.1:1000")})
	l.b.OK(err)
}

var streams = []struct {
	payload int
	split   bool
}{{64, false}, {1448, false}, {65000, false}, {64, true}, {1448, true}, {65000, true}}

func benchStreams(b *testing.B, run func(*testing.B, nictest.Stream)) {
	for _, c := range streams {
		b.Run(fmt.Sprintf("%d/split=%v", c.payload, c.split), func(b *testing.B) {
			run(b, newStream(b, c.payload, c.split))
		})
	}
}

func BenchmarkPath(b *testing.B)   { benchStreams(b, nictest.BenchmarkPath) }
func BenchmarkStream(b *testing.B) { benchStreams(b, nictest.BenchmarkStream) }
func BenchmarkWorker(b *testing.B) { benchStreams(b, nictest.BenchmarkWorker) }
