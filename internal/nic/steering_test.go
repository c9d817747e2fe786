package nic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// commandPort makes a port with four receive queues, which are nil, so no test may deliver packets to it.
func commandPort(t testing.TB, c Config) *Port {
	t.Helper()
	c.Name, c.MAC, c.MTU, c.QueuePairs, c.HeaderLimit = "a", wire.MAC{2, 0, 0, 0, 0, 1}, 1500, 4, 256
	space := dma.NewSpace("a", dma.NewFiles())
	p := testkit.Must(NewPort(c, space, make([]RxQueue, 4), new(atomic.Pointer[wire.Limits])))(t)
	return p
}

func ruleOf(i int) control.FlowRule {
	return control.FlowRule{Proto: 6, Src: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
		Dst: netip.AddrFrom4([4]byte{10, 1, 0, 1}), SrcPort: uint16(i + 1), DstPort: 443, Queue: uint16(i % 4)}
}

// anyRule returns a random TCP rule. Each of its addresses and ports is unset or has one of two values, so that rules
// overlap.
func anyRule(t *rapid.T) control.FlowRule {
	r := control.FlowRule{Proto: 6, Queue: uint16(rapid.IntRange(0, 3).Draw(t, "queue"))}
	r.IPv6 = rapid.Bool().Draw(t, "IPv6")
	addr := func(what string) (a netip.Addr) {
		i := rapid.IntRange(0, 2).Draw(t, what)
		switch {
		case i == 0:
		case r.IPv6:
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
		default:
			a = netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		}
		return a
	}
	r.Src, r.Dst = addr("src"), addr("dst")
	r.SrcPort = uint16(rapid.IntRange(0, 2).Draw(t, "src port"))
	r.DstPort = uint16(rapid.IntRange(0, 2).Draw(t, "dst port"))
	return r
}

// After each of a random sequence of commands, the port has the rules, splits, RSS key and RSS table that its State
// has when compiled without an old steering. A refused command leaves the steering as it was.
func TestSteeringIsTheState(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := commandPort(t, Config{})
		for range rapid.IntRange(1, 30).Draw(rt, "commands") {
			before := p.steering.Load()
			var err error
			var id uint32
			if rules := p.state().Rules; len(rules) > 0 {
				id = rules[rapid.IntRange(0, len(rules)-1).Draw(rt, "which")].ID
			}
			switch rapid.IntRange(0, 6).Draw(rt, "command") {
			case 0, 1, 2:
				_, err = p.AddFlow(anyRule(rt))
			case 3:
				err = p.DelFlow(id)
			case 4:
				_, err = p.ReplaceFlow(id, anyRule(rt))
			case 5:
				r, _ := p.RSS()
				r.Key[0]++
				r.Table = slices.Repeat([]uint16{1, 0}, rapid.IntRange(1, 3).Draw(rt, "table"))
				r.HashTypes = uint32(rapid.IntRange(0, 1<<7-1).Draw(rt, "types"))
				err = p.SetRSS(r)
			case 6:
				queue := uint16(rapid.IntRange(0, 4).Draw(rt, "queue"))
				err = p.SetSplit(control.Split{Queue: queue, On: true, Threshold: 7})
			}
			now := p.steering.Load()
			if err != nil && now != before {
				rt.Fatalf("refused (%v), and steering is another", err)
			}
			fresh, err := compile(now.state, new(steering))
			if err != nil {
				rt.Fatal(err)
			}
			if !slices.Equal(now.splits, fresh.splits) || now.rss.Key != fresh.rss.Key ||
				!slices.Equal(now.rss.Table, fresh.rss.Table) {
				rt.Fatalf("%+v, not as compiled from nothing %+v", now, fresh)
			}
			for range 50 {
				f := splitter.Flow{Proto: 6, IPv6: rand.IntN(2) == 0, SrcPort: uint16(rand.IntN(3)), DstPort: uint16(rand.IntN(3))}
				f.Src, f.Dst = [16]byte{10, 3: byte(rand.IntN(3))}, [16]byte{10, 3: byte(rand.IntN(3))}
				if f.IPv6 {
					f.Src, f.Dst = [16]byte{0xfd, 15: byte(rand.IntN(3))}, [16]byte{0xfd, 15: byte(rand.IntN(3))}
				}
				got, ok := now.rules.Lookup(&f)
				if want, found := fresh.rules.Lookup(&f); got != want || ok != found {
					rt.Fatalf("%+v to %d (%v), not to %d (%v); rules %+v", f, got, ok, want, found, now.state.Rules)
				}
			}
		}
	})
}

// Concurrent commands do not undo one another, and meanwhile each lookup finds one of the rules that match.
func TestCommandsOneAfterAnother(t *testing.T) {
	p := commandPort(t, Config{})
	always := control.FlowRule{Proto: 6, DstPort: 443, Queue: 2}
	if _, err := p.AddFlow(always); err != nil {
		t.Fatal(err)
	}
	f := splitter.Flow{Proto: 6, Src: [16]byte{10}, Dst: [16]byte{10, 1, 0, 1}, SrcPort: 1, DstPort: 443}
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if q, ok := p.steering.Load().rules.Lookup(&f); !ok || q != 2 && q != 0 {
					t.Errorf("queue %d, %v", q, ok)
					return
				}
			}
		})
	}
	for n := range 4 {
		writers.Go(func() {
			for range 100 {
				id, err := p.AddFlow(ruleOf(n))
				if err == nil {
					_, err = p.AddFlowCounter(control.FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("1.2.3.4:5"),
						Remote: netip.MustParseAddrPort("1.2.3.4:6")})
				}
				if err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Error(err)
				}
				testkit.NoError(t, p.DelFlow(id))
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	s := p.State()
	if len(s.Rules) != 1 || len(s.FlowCounters) != maxFlowCounters || s.LastID != 1+400+maxFlowCounters {
		t.Errorf("%d rules, %d meters, last id %d", len(s.Rules), len(s.FlowCounters), s.LastID)
	}
}

// A flow counter keeps its counts when other commands change the State. After a reset, a counter with the same id
// begins at 0.
func TestMetersCountOn(t *testing.T) {
	p := commandPort(t, Config{})
	m := control.FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.1:5"),
		Remote: netip.MustParseAddrPort("10.0.0.2:6")}
	var ids []uint32
	for range 3 {
		id := testkit.Must(p.AddFlowCounter(m))(t)
		ids = append(ids, id)
	}
	packet := func() {
		for _, m := range p.steering.Load().flowCounters {
			m.rx.count(&splitter.Headers{Class: splitter.TCP}, 1, 54, 100, &bytesByMem{host: 100})
		}
	}
	read := func(id uint32, want uint64) {
		t.Helper()
		c, err := p.ReadFlowCounter(id)
		if err != nil || c.Rx.Packets != want || c.Rx.RetransBytes != 100*(want-1) {
			t.Errorf("meter %d: %+v, %v; not %d packets", id, c.Rx, err, want)
		}
	}
	packet()
	rss, _ := p.RSS()
	rss.Table = []uint16{1}
	for _, err := range []error{
		func() error { _, err := p.AddFlow(ruleOf(0)); return err }(),
		p.SetSplit(control.Split{Queue: 1, On: true}),
		p.SetRSS(rss),
		p.DelFlowCounter(ids[0]),
	} {
		testkit.OK(t, err)
	}
	packet()
	read(ids[1], 2)
	read(ids[2], 2)
	if _, err := p.ReadFlowCounter(ids[0]); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
	p.Reset()
	if id, err := p.AddFlowCounter(m); err != nil || id != ids[0] {
		t.Fatalf("meter %d, %v", id, err)
	}
	packet()
	read(ids[0], 1)
}

func TestDefaultRSS(t *testing.T) {
	table := []uint16{3, 2}
	set := func(table ...uint16) func(*Port) error {
		return func(p *Port) error {
			r, _ := p.RSS()
			r.Table = table
			return p.SetRSS(r)
		}
	}
	use := func(queues ...uint16) func(*Port) error {
		return func(p *Port) error { p.SetDefaultRSS(queues); return nil }
	}
	over := func(queues ...uint16) []uint16 { return slices.Repeat(queues, defaultTableLen/len(queues)) }
	hello := func(p *Port) error { _, err := p.Info(); return err }
	reset := func(p *Port) error { p.Reset(); return nil }
	key := func(p *Port) error {
		r, _ := p.RSS()
		r.Key[5]++
		return p.SetRSS(r)
	}
	drivers := Config{QueueSplits: true}
	for name, tc := range map[string]struct {
		c    Config
		do   []func(*Port) error
		want []uint16
	}{
		"at first":                      {want: []uint16{0}},
		"one queue":                     {do: []func(*Port) error{use(2)}, want: []uint16{0}},
		"two queues":                    {do: []func(*Port) error{use(0, 3)}, want: over(0, 3)},
		"fewer again":                   {do: []func(*Port) error{use(0, 3), use(0)}, want: []uint16{0}},
		"hello":                         {do: []func(*Port) error{use(0, 3), hello}, want: []uint16{0}},
		"hello before":                  {do: []func(*Port) error{hello, use(0, 3)}, want: []uint16{0}},
		"set":                           {do: []func(*Port) error{set(table...), use(0, 3)}, want: table},
		"set, then hello":               {do: []func(*Port) error{use(0, 3), set(table...), hello, use(0, 1)}, want: table},
		"hello, then set":               {do: []func(*Port) error{hello, set(table...), use(0, 3)}, want: table},
		"another key":                   {do: []func(*Port) error{use(0, 3), key, use(0, 1)}, want: over(0, 1)},
		"reset":                         {do: []func(*Port) error{use(0, 3), set(table...), reset}, want: []uint16{0}},
		"reset, and queues":             {do: []func(*Port) error{set(table...), hello, reset, use(0, 3)}, want: over(0, 3)},
		"driver's queues: hello":        {c: drivers, do: []func(*Port) error{use(0, 3), hello}, want: over(0, 3)},
		"driver's queues: hello before": {c: drivers, do: []func(*Port) error{hello, use(0, 3)}, want: over(0, 3)},
		"driver's queues: set": {c: drivers,
			do: []func(*Port) error{use(0, 3), set(table...), use(0, 1)}, want: table},
		"driver's queues: set to the default": {c: drivers,
			do: []func(*Port) error{use(0, 3), set(over(0, 3)...), use(0, 1)}, want: over(0, 1)},
	} {
		p := commandPort(t, tc.c)
		for _, f := range tc.do {
			if err := f(p); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		r, _ := p.RSS()
		if d := cmp.Diff(tc.want, r.Table); d != "" || !slices.Equal(p.steering.Load().rss.Table, tc.want) {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// BenchmarkAddRules adds as many rules as a port takes, one by one.
func BenchmarkAddRules(b *testing.B) {
	p := commandPort(b, Config{})
	b.ReportAllocs()
	for b.Loop() {
		for i := range MaxRules {
			if _, err := p.AddFlow(ruleOf(i)); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		p.Reset()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/MaxRules, "ns/rule")
}

// BenchmarkSteer measures how long Port.steer takes to find the queue of a TCP packet, by RSS or by a rule.
func BenchmarkSteer(b *testing.B) {
	for _, rules := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			p := commandPort(b, Config{})
			p.SetDefaultRSS([]uint16{0, 1, 2, 3})
			var pkt wire.Packet
			r := ruleOf(0)
			for i := range rules {
				r = ruleOf(i)
				if _, err := p.AddFlow(r); err != nil {
					b.Fatal(err)
				}
			}
			f := &pkt.Meta.Headers.Flow
			f.Proto, f.SrcPort, f.DstPort = 6, r.SrcPort, r.DstPort
			copy(f.Src[:], r.Src.AsSlice())
			copy(f.Dst[:], r.Dst.AsSlice())
			pkt.Meta.Headers.Class = splitter.TCP
			b.ReportAllocs()
			var to route
			for b.Loop() {
				s := p.steering.Load()
				p.steer(s, &pkt, &to)
			}
		})
	}
}
