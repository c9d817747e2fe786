package gve

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// lane is a stream of equal frames from one guest to another, that allocates nothing itself.
type lane struct {
	a, b    *suiteGuest
	tx      []txDesc // one frame's descriptors
	tag     uint16
	buffers int // that a frame takes
	frame   int // bytes
}

const (
	laneBatch = 32
	laneRing  = 2048
)

// newLane prepares frames of payload bytes; above the MTU they are super-packets. If split, payload
// goes to the GPU's memory.
func newLane(t testing.TB, payload int, split, device bool) *lane {
	files := dma.NewFiles()
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = sw.Close() })
	ro := rawOptions{pairs: 1, mtu: 1500, ring: laneRing, rsc: payload > 1460, p2p: true, device: device}
	l := &lane{a: newSuiteGuest(t, files, sw, 0, ro), b: newSuiteGuest(t, files, sw, 1, ro)}
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
	at := l.a.txd[0].posted
	l.a.add(0, &f, false) // lays the frame out; its descriptors are taken back
	d := l.a.txd[0]
	for ; at != d.posted; at++ {
		var x txDesc
		x.decode((*[txDescLen]byte)(d.ring[at&d.mask*txDescLen:]))
		l.tx = append(l.tx, x)
	}
	d.posted -= uint32(len(l.tx))
	d.flight--
	r := l.b.rxd[0]
	for i := range 4 * laneBatch * l.buffers {
		if i == laneRing-1 {
			break
		}
		addr := uint64(rawGPU + i%512*4096)
		if !split {
			addr, _ = l.b.alloc(4096)
		}
		r.post(addr)
	}
	r.doorbell()
	return l
}

func (l *lane) send(n int) {
	d := l.a.txd[0]
	for range n {
		l.tag = (l.tag + 1) % 0x8000
		for _, x := range l.tx {
			x.tag = l.tag
			d.add(x)
		}
		d.flight++
	}
	d.doorbell()
}

// take takes the buffers that have come, and posts them again. It returns how many frames were complete.
func (l *lane) take() (frames int) {
	d := l.b.rxd[0]
	for c := (rxCompl{}); ; {
		addr := d.addrs[d.seen&d.mask]
		if !d.poll(&c) {
			break
		}
		if c.bad {
			l.b.t.Fatal("bad buffer")
		}
		d.post(addr)
		if c.eop {
			frames++
		}
	}
	d.doorbell()
	return frames
}

// round moves a batch: sends it, waits until it is sent and received, and posts the buffers again.
func (l *lane) round() {
	l.send(laneBatch)
	for n := 0; n < laneBatch; {
		k := l.take()
		if n += k; k == 0 {
			l.b.wait(l.b.rxd[0].params.notify)
		}
	}
	l.a.txd[0].sent()
}

// Bytes arrive as they were sent, whole, split or not, with their checksums complete.
//
// Invariant: nic: Headers go to the header buffer and payload elsewhere, to the byte, and nothing
// else changes on the way.
func TestPathKeepsBytes(t *testing.T) {
	for _, payload := range []int{1, 64, 1448, 65000} {
		for _, split := range []bool{false, true} {
			t.Run(fmt.Sprint(payload, split), func(t *testing.T) {
				l := newLane(t, payload, split, false)
				l.send(1)
				got := l.b.Receive(0)
				b := got.Bytes()
				if len(b) != l.frame || !got.Good || got.Split != split || got.Buffers != l.buffers {
					t.Fatalf("%d bytes of %d, good %v, split %v, %d buffers", len(b), l.frame, got.Good, got.Split, got.Buffers)
				}
				f := nictest.Make(l.b.mac, l.a.mac, nictest.Spec{Payload: payload})
				if string(b[54:]) != string(f.Payload) {
					t.Error("payload differs")
				}
			})
		}
	}
}

// A metered flow, for the allocation test.
func (l *lane) meter() {
	_, err := l.b.port.AddMeter(control.Meter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.2:2000"),
		Remote: netip.MustParseAddrPort("10.0.0.1:1000")})
	l.b.must(err)
}

var lanes = []struct {
	payload int
	split   bool
}{{64, false}, {1448, false}, {65000, false}, {64, true}, {1448, true}, {65000, true}}

// BenchmarkPath is guest to guest over two devices, with a copy of the same bytes as the reference.
// Doorbells are calls.
func BenchmarkPath(b *testing.B) {
	for _, c := range lanes {
		b.Run(fmt.Sprintf("%d/split=%v", c.payload, c.split), func(b *testing.B) {
			l := newLane(b, c.payload, c.split, false)
			b.SetBytes(int64(c.payload) * laneBatch)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				l.round()
				n += laneBatch
			}
			l.report(b, float64(b.Elapsed().Nanoseconds())/float64(n))
		})
	}
}

// BenchmarkStream is the same without a pause: both rings are kept full, nobody sleeps.
func BenchmarkStream(b *testing.B) {
	for _, c := range lanes {
		b.Run(fmt.Sprintf("%d/split=%v", c.payload, c.split), func(b *testing.B) {
			l := newLane(b, c.payload, c.split, false)
			b.SetBytes(int64(c.payload))
			sent, got := 0, 0
			d := l.a.txd[0]
			b.ResetTimer()
			for got < b.N {
				for some := true; some; {
					some, _ = d.poll()
				}
				if n := min(b.N-sent, 4*laneBatch-d.flight, d.room()/len(l.tx)-1); n > 0 {
					l.send(n)
					sent += n
				}
				n := l.take()
				if got += n; n == 0 {
					runtime.Gosched()
				}
			}
			b.StopTimer()
			l.report(b, float64(b.Elapsed().Nanoseconds())/float64(b.N))
		})
	}
}

// BenchmarkWorker is what a frame costs a transmit queue's worker, in processor time of its thread:
// here the benchmark's, which does the worker's rounds. Drivers are not counted; the reference is
// the same as above.
func BenchmarkWorker(b *testing.B) {
	for _, c := range lanes {
		b.Run(fmt.Sprintf("%d/split=%v", c.payload, c.split), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l := newLane(b, c.payload, c.split, false)
			l.a.startTx(0)
			q, d := l.a.tx[0], l.a.txd[0]
			q.sender.Stop() // the worker ends, and its rings stay
			var spent time.Duration
			frames := 0
			for b.Loop() {
				for range laneBatch {
					for _, x := range l.tx {
						d.add(x)
					}
				}
				q.tail.Store(d.posted & d.mask)
				start := threadTime()
				n, err := q.sender.Round(false)
				spent += threadTime() - start
				l.a.must(err)
				frames += n
				l.take()
			}
			per := float64(spent) / float64(frames)
			l.report(b, per)
		})
	}
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// report compares with a copy of the payload from the one guest's memory to the other's.
func (l *lane) report(b *testing.B, perFrame float64) {
	n := l.frame - 54
	src, dst := l.a.mem[l.a.next-uint64(n+4095)&^4095:][:n], l.b.mem[16<<20:][:n]
	const copies = 20000
	start := time.Now()
	for range copies {
		copy(dst, src)
	}
	ref := float64(time.Since(start).Nanoseconds()) / copies
	b.ReportMetric(perFrame, "ns/frame")
	b.ReportMetric(perFrame/ref, "x-copy")
}
