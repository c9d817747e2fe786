//go:build !race

package wire

import (
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

type sink struct {
	lim Limits
	n   int
}

func (*sink) Name() string     { return "sink" }
func (k *sink) Limits() Limits { return k.lim }
func (k *sink) Deliver(_ *Worker, batch []*Packet) {
	k.n += len(batch)
	for _, p := range batch {
		p.Verdict = Verdict{Kind: Taken}
	}
}

type blind struct{}

func (blind) Sending(*Packet) uint64               { return 0 }
func (blind) Sent(*Worker, *Packet, uint64)        {}
func (blind) Received(*Worker, *Packet, Placement) {}

// attachSink returns a host a, a sink, and the sink's address, which the switch already knows.
func attachSink(t testing.TB, up, down Impairment, lim Limits, who *Identity) (a *host, k *sink, to MAC) {
	s := newSwitch(t)
	a = newHost(t, s, 1, LinkOptions{Up: up, Identity: who})
	k = &sink{lim: lim}
	l := testkit.Must(s.Attach(k, LinkOptions{Down: down}))(t)
	to = MAC{2, 0, 0, 0, 0, 7}
	s.table.learn(to.key(), l.id)
	return a, k, to
}

// Invariant: hot path: Nothing is allocated for a packet.
func TestDeliverDoesNotAllocate(t *testing.T) {
	bad := Impairment{Loss: 0.01, Reorder: 0.02, HoldMax: time.Hour}
	for name, c := range map[string]struct {
		up, down Impairment
		lim      Limits
		s        spec
		flood    bool
		mpls     bool // MPLS frames with a partial checksum whose field is in the payload
		who      *Identity
		arp      bool
	}{
		"whole":      {lim: superLimits, s: spec{n: 60000, mss: 1448}},
		"cut":        {s: spec{n: 60000, mss: 1448}},
		"cut to k":   {lim: Limits{Csum: true, GSO: superLimits.GSO, MaxBytes: 9000}, s: spec{n: 60000, mss: 1448}},
		"completed":  {s: spec{n: 1448, csum: splitter.CsumPartial}},
		"elsewhere":  {s: spec{n: 1448}, mpls: true},
		"bad links":  {up: bad, down: bad, lim: superLimits, s: spec{n: 60000, mss: 1448}},
		"small, bad": {up: bad, down: bad, s: spec{n: 100}},
		"flood":      {s: spec{n: 100}, flood: true},
		"refused":    {s: spec{n: 100, mss: 2}},
		"checked":    {lim: superLimits, s: spec{n: 60000, mss: 1448}, who: &Identity{MAC: MAC{2, 0, 0, 0, 0, 1}}},
		"neighbors":  {who: &Identity{MAC: MAC{2, 0, 0, 0, 0, 1}}, arp: true},
		"not yours":  {s: spec{n: 100}, who: &Identity{MAC: MAC{2, 0, 0, 0, 0, 2}}},
		"not, ARP":   {who: &Identity{Any: true}, arp: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, k, to := attachSink(t, c.up, c.down, c.lim, c.who)
			if c.who != nil && c.who.Any {
				a.link.Reserve(MAC{2, 2}, netip.MustParseAddr("10.0.0.1"))
			}
			if c.flood {
				to = broadcast
			}
			var batch []*Packet
			for range 32 {
				p := a.packet(to, c.s)
				if c.arp {
					p = a.rawFrame(frame(a.mac, 1, splitter.EtherTypeARP, arpBody(1, a.mac, ip4(1), ip4(7))), splitter.EthLen, 0)
				}
				if c.mpls {
					p.Header[12], p.Header[13] = 0x88, 0x47
					testkit.OK(t, splitter.Parse(p.Header, p.Len(), &p.Meta.Headers))
					partial(p, 34, 40) // the field is in the payload
				}
				batch = append(batch, p)
			}
			f := func() {
				for _, p := range batch {
					p.Prepare()
				}
				a.send(batch...)
			}
			for range 50 {
				f() // buffers grow to their final size
			}
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("Deliver of %d packets allocates %v times", len(batch), n)
			}
			for _, l := range a.link.sw.Links() {
				l.SetTap(blind{})
			}
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("Deliver of %d packets allocates %v times with a tap", len(batch), n)
			}
			if k.n == 0 && name != "refused" && name[:3] != "not" {
				t.Error("nothing came")
			}
		})
	}
}

type awaited struct {
	sink
	want int
	came chan struct{}
}

func (k *awaited) Deliver(w *Worker, batch []*Packet) {
	k.sink.Deliver(w, batch)
	if k.n == k.want {
		k.came <- struct{}{}
	}
}

func TestDelayDoesNotAllocate(t *testing.T) {
	s := newSwitch(t)
	a := newHost(t, s, 1, LinkOptions{Up: Impairment{Delay: time.Microsecond, Jitter: time.Microsecond}})
	k := &awaited{sink: sink{lim: superLimits}, came: make(chan struct{})}
	l := testkit.Must(s.Attach(k, LinkOptions{}))(t)
	to := MAC{2, 0, 0, 0, 0, 7}
	s.table.learn(to.key(), l.id)
	var batch []*Packet
	for i := range 32 {
		batch = append(batch, a.packet(to, spec{n: []int{65000, 100, 65000, 9000}[i%4], mss: 9000}))
	}
	f := func() {
		k.n, k.want = 0, len(batch)
		for _, p := range batch {
			p.Prepare()
		}
		a.send(batch...)
		<-k.came
	}
	for range 50 {
		f()
	}
	if n := testing.AllocsPerRun(200, f); n != 0 {
		t.Errorf("%d packets that are late allocate %v times", len(batch), n)
	}
}

// BenchmarkDeliver sends batches of 32.
func BenchmarkDeliver(b *testing.B) {
	for _, c := range []struct {
		name     string
		up, down Impairment
		lim      Limits
		s        spec
		two      bool
		who      *Identity
	}{
		{name: "1448", s: spec{n: 1448}},
		{name: "1448 checked", s: spec{n: 1448}, who: &Identity{MAC: MAC{2, 0, 0, 0, 0, 1}}},
		{name: "1448 to two ports in turn", s: spec{n: 1448}, two: true},
		{name: "64K whole", lim: superLimits, s: spec{n: 64000, mss: 1448}},
		{name: "64K cut to 1448", lim: Limits{Csum: true}, s: spec{n: 64000, mss: 1448}},
		{name: "64K cut and summed", s: spec{n: 64000, mss: 1448}},
		{name: "64K lossy", up: Impairment{Loss: 0.01}, lim: superLimits, s: spec{n: 64000, mss: 1448}},
		{name: "1448 lossy", up: Impairment{Loss: 0.01}, s: spec{n: 1448}},
	} {
		b.Run(c.name, func(b *testing.B) {
			a, _, to := attachSink(b, c.up, c.down, c.lim, c.who)
			other := to
			if c.two {
				l := testkit.Must(a.link.sw.Attach(&sink{}, LinkOptions{}))(b)
				other[5]++
				a.link.sw.table.learn(other.key(), l.id)
			}
			var batch []*Packet
			for i := range 32 {
				batch = append(batch, a.packet([]MAC{to, other}[i%2], c.s))
			}
			tok := a.space.Enter()
			defer a.space.Leave(tok)
			b.ReportAllocs()
			for b.Loop() {
				if c.up.does() || c.s.mss != 0 {
					for _, p := range batch {
						p.Progress.reset()
					}
				}
				a.link.Deliver(a.w, batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/packet")
		})
	}
}
