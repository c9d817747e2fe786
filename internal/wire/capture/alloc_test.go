//go:build !race

package capture

import (
	"io"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

type stuck struct{ entered, free chan struct{} }

func (s stuck) Write(b []byte) (int, error) {
	select {
	case s.entered <- struct{}{}:
	case <-s.free:
	}
	<-s.free
	return len(b), nil
}

// The test blocks the writer goroutine, whose allocations would be counted.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestTapAllocatesNothing(t *testing.T) {
	for name, records := range map[string]int{"room": 1 << 14, "full": 2} {
		for _, payload := range []int{0, 256} {
			sw := newSwitch(t)
			a := newHost(t, sw, 0, wire.LinkOptions{Up: wire.Impairment{Loss: 0.1}})
			b := newHost(t, sw, 1, wire.LinkOptions{})
			b.send(b.arp())
			s := stuck{make(chan struct{}), make(chan struct{})}
			c := attached(t, s, Options{Records: records, Payload: payload}, a, b)
			batch := []*wire.Packet{a.tcp(b.mac, a.gpu, 0, 1448, 0, 0), a.tcp(b.mac, a.gpu, 0, 14480, 1448, 0)}
			f := func() {
				for _, p := range batch {
					p.Prepare()
				}
				a.send(batch...)
			}
			<-s.entered
			f()
			if n := testing.AllocsPerRun(1000, f); n > 0 {
				t.Errorf("%s, %d bytes of payload: %v allocations", name, payload, n)
			}
			if missed := c.Stats().Missed; (missed > 0) != (name == "full") {
				t.Errorf("%s: %d missed", name, missed)
			}
			close(s.free)
			testkit.OK(t, c.Close())
		}
	}
}

// Invariant: hot path: Nothing is allocated for a packet.
func TestWriterAllocatesNothing(t *testing.T) {
	c := &Capture{out: io.Discard}
	w := &writer{c: c, sink: newSink(c.out)}
	i := &iface{name: "x", rx: true}
	testkit.OK(t, w.add(i))
	r := &record{iface: i, data: make([]byte, 67), n: 67, length: 1515, payload: 1448, segments: 12, mss: 120, queue: 3,
		verdict: wire.Taken, split: true, header: 54, losses: 1, held: 1}
	for range maxFrags {
		r.places.add(frag{gpu: 0, domain: dma.GPU, off: 0x123000, len: 1448})
	}
	f := func() {
		i.missed.Add(1)
		w.take(r)
	}
	for range 1000 { // the sink's list of waiting packets grows to its final size
		f()
	}
	if n := testing.AllocsPerRun(1000, f); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDeliver measures the delivery of packets with a capture and without.
func BenchmarkDeliver(b *testing.B) {
	for _, c := range []struct {
		name    string
		capture bool
		payload int
	}{{"bare", false, 0}, {"headers", true, 0}, {"256 bytes", true, 256}} {
		b.Run(c.name, func(b *testing.B) {
			x, y := pair(b)
			cap := testkit.Must(New(io.Discard, Options{Payload: c.payload}))(b)
			if c.capture {
				cap.Attach(x.link)
				cap.Attach(y.link)
			}
			var batch []*wire.Packet
			for range 32 {
				batch = append(batch, x.tcp(y.mac, x.gpu, 0, 1448, 0, 0))
			}
			for b.Loop() {
				x.send(batch...)
			}
			testkit.OK(b, cap.Close())
			s := cap.Stats()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/packet")
			b.ReportMetric(100*float64(s.Missed)/float64(max(1, s.Missed+s.Packets)), "%missed")
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	c := &Capture{out: io.Discard}
	w := &writer{c: c, sink: newSink(c.out)}
	i := &iface{name: "x"}
	testkit.OK(b, w.add(i))
	r := &record{iface: i, data: make([]byte, 66), n: 66, length: 1514, payload: 1448, segments: 1, verdict: wire.Taken,
		queue: -1}
	r.places.add(frag{gpu: 0, domain: dma.GPU, off: 0x123000, len: 1448})
	b.ReportAllocs()
	for b.Loop() {
		w.take(r)
	}
}
