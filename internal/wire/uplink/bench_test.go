package uplink

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

type sink struct {
	name  string
	bytes chan int
}

func (s *sink) Name() string        { return s.name }
func (s *sink) Limits() wire.Limits { return wire.Limits{} }

func (s *sink) Deliver(_ *wire.Worker, batch []*wire.Packet) {
	n := 0
	for _, p := range batch {
		n += int(p.PayloadLen)
		p.Verdict = wire.Verdict{Kind: wire.Taken}
	}
	s.bytes <- n
}

// As with a TCP window, at most 4 GSO packets are on their way.
func BenchmarkUplink(b *testing.B) {
	path := b.TempDir() + "/up"
	x, y := tunnel(42)
	for _, c := range []struct {
		name string
		ends [2]Config
	}{
		{"vxlan", [2]Config{x, y}},
		{"stream", [2]Config{{Stream: &Stream{Listen: path}}, {Stream: &Stream{Connect: path}}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			from, to := newSide(b, 1, c.ends[0], 1500), newSide(b, 2, c.ends[1], 1500)
			if s, ok := from.up.c.(*stream); ok {
				testkit.Eventually(b, "the peer is there", func() bool { return s.now() != nil })
			}
			s := &sink{"sink", make(chan int, 1<<16)}
			link, err := to.sw.Attach(s, wire.LinkOptions{})
			if err != nil {
				b.Fatal(err)
			}
			const mss, segments = 1460, 44
			hello := packet(b, plain(macOf(9), from.mac, ""))
			link.Deliver(wire.NewWorker(), []*wire.Packet{hello})
			from.next()
			p := partial(packet(b, tcp(from.mac, macOf(9), mss*segments)), mss)
			b.SetBytes(mss * segments)
			b.ReportAllocs()
			const window = 4 * mss * segments
			sent, got := 0, 0
			for b.Loop() {
				for sent-got >= window {
					got += <-s.bytes
				}
				p.Prepare()
				from.send(p)
				sent += mss * segments
			}
			for got < sent {
				got += <-s.bytes
			}
		})
	}
}
