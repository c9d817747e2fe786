package control

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"vnic.dev/vnic/internal/testkit"
)

func (s *State) check(t interface{ Fatalf(string, ...any) }, i *Info) {
	if len(s.Splits) != int(i.QueuePairs) || len(s.Rules) > int(i.MaxRules) || len(s.Bindings) > int(i.MaxBindings) ||
		len(s.FlowCounters) > int(i.MaxFlowCounters) {
		t.Fatalf("out of limits: %+v", s)
	}
	ids := map[uint32]bool{}
	for _, r := range s.Rules {
		if ids[r.ID] || r.ID == 0 || int(r.Queue) >= len(s.Splits) {
			t.Fatalf("rule %+v", r)
		}
		ids[r.ID] = true
	}
	bound := map[uint16]bool{}
	for _, n := range s.Bindings {
		if _, ok := s.Buffer(n.Buffer); !ok || ids[n.ID] || n.ID == 0 {
			t.Fatalf("binding %+v", n)
		}
		ids[n.ID] = true
		for _, q := range n.Queues {
			if q == 0 || bound[q] || !s.Splits[q].On || s.Splits[q].Threshold != 0 {
				t.Fatalf("binding %+v of queue %d", n, q)
			}
			bound[q] = true
		}
	}
	for _, q := range s.RSS.Table {
		if int(q) >= len(s.Splits) {
			t.Fatalf("RSS to queue %d", q)
		}
	}
}

func testInfo() *Info {
	return &Info{QueuePairs: 4, MaxRSS: 8, MaxRules: 2, MaxBuffers: 4, MaxBindings: 3, MaxFlowCounters: 1}
}

func TestRules(t *testing.T) {
	i := testInfo()
	set := func(t *testing.T) *State {
		s := NewState(1, i, [40]byte{7})
		s.AddBuffer(Buffer{ID: 2, Size: 8192})
		s.AddBuffer(Buffer{ID: 1, Off: 8192, Size: 8192})
		s.AddBuffer(Buffer{ID: 3, Off: 4096, Size: 8192})
		s.AddBuffer(Buffer{ID: 4, GPU: 1, Size: 8192})
		for _, q := range []uint16{1, 2} {
			testkit.OK(t, s.SetSplit(Split{Queue: q, On: true}))
		}
		testkit.OK(t, s.SetSplit(Split{Queue: 3, On: true, Threshold: 1}))
		if _, err := s.BindRx(2, []uint16{1}, 3); err != nil {
			t.Fatal(err)
		}
		return s
	}
	flow := FlowRule{Proto: 6, DstPort: 1, Queue: 1}
	meter := FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("1.2.3.4:5"),
		Remote: netip.MustParseAddrPort("1.2.3.4:6")}
	bindRx := func(b uint32, q ...uint16) func(*State) error {
		return func(s *State) error { _, err := s.BindRx(b, q, 3); return err }
	}
	addFlow := func(r FlowRule) func(*State) error {
		return func(s *State) error { _, err := s.AddFlow(r, 2); return err }
	}
	addMeter := func(m FlowCounter) func(*State) error {
		return func(s *State) error { _, err := s.AddFlowCounter(m, 1); return err }
	}
	bindTx := func(b uint32) func(*State) error {
		return func(s *State) error { _, err := s.BindTx(b, 3); return err }
	}
	twice := func(f func(*State) error) func(*State) error {
		return func(s *State) error {
			if err := f(s); err != nil {
				return err
			}
			c := s.Clone()
			err := f(s)
			if d := cmp.Diff(c, s, sameAddr); d != "" {
				return errors.New(d)
			}
			return err
		}
	}
	for _, tc := range []struct {
		name string
		do   func(*State) error
		want error
	}{
		{"split of no queue", func(s *State) error { return s.SetSplit(Split{Queue: 4}) }, syscall.EINVAL},
		{"split of queue 0", func(s *State) error { return s.SetSplit(Split{On: true}) }, syscall.EINVAL},
		{"no split of queue 0", func(s *State) error { return s.SetSplit(Split{}) }, nil},
		{"split off while bound", func(s *State) error { return s.SetSplit(Split{Queue: 1}) }, syscall.EINVAL},
		{"threshold while bound", func(s *State) error { return s.SetSplit(Split{Queue: 1, On: true, Threshold: 1}) },
			syscall.EINVAL},
		{"split off after unbind", func(s *State) error { s.Unbind(s.Bindings[0].ID); return s.SetSplit(Split{Queue: 1}) },
			nil},
		{"rule", addFlow(flow), nil},
		{"same rule to another queue", func(s *State) error {
			addFlow(flow)(s)
			o := flow
			o.Queue = 2
			return addFlow(o)(s)
		}, syscall.EEXIST},
		{"rule to no queue", addFlow(FlowRule{Proto: 6, DstPort: 1, Queue: 4}), syscall.EINVAL},
		{"rule of nothing", addFlow(FlowRule{Proto: 6}), syscall.EINVAL},
		{"rule of any ESP", addFlow(FlowRule{Proto: 50}), syscall.EINVAL},
		{"rule for SCTP", addFlow(FlowRule{Proto: 132, SrcPort: 1, Queue: 1}), nil},
		{"rule for an SPI", addFlow(FlowRule{Proto: 51, SrcPort: 1, Queue: 1}), nil},
		{"rule of ICMP", addFlow(FlowRule{Proto: 1, DstPort: 1}), syscall.EOPNOTSUPP},
		{"rule of two families", addFlow(FlowRule{Proto: 6, IPv6: true, Src: netip.MustParseAddr("1.2.3.4")}),
			syscall.EINVAL},
		{"too many rules", func(s *State) error {
			addFlow(flow)(s)
			addFlow(FlowRule{Proto: 6, DstPort: 2})(s)
			return addFlow(FlowRule{Proto: 6, DstPort: 3})(s)
		}, syscall.ENOSPC},
		{"no such rule", func(s *State) error { return s.DelFlow(9) }, syscall.ENOENT},
		{"RSS to no queue", func(s *State) error { return s.SetRSS(RSS{Table: []uint16{4}}, 8) }, syscall.EINVAL},
		{"RSS of three", func(s *State) error { return s.SetRSS(RSS{Table: []uint16{1, 2, 3}}, 8) }, syscall.EINVAL},
		{"RSS over a bound queue", func(s *State) error { return s.SetRSS(RSS{Table: []uint16{1}}, 8) }, nil},
		{"bind", bindRx(1, 2), nil},
		{"bind on another GPU", bindRx(4, 2), nil},
		{"bind of no buffer", bindRx(9, 2), syscall.EBADF},
		{"bind of no queue", bindRx(1), syscall.EINVAL},
		{"bind of queue 0", bindRx(1, 0), syscall.ERANGE},
		{"bind out of range", bindRx(1, 4), syscall.EINVAL},
		{"bind with threshold", bindRx(1, 3), syscall.EINVAL},
		{"bind without split", func(s *State) error { s.SetSplit(Split{Queue: 2}); return bindRx(1, 2)(s) }, syscall.EINVAL},
		{"bind of a bound queue", bindRx(1, 2, 1), syscall.EEXIST},
		{"bind over a bound buffer", bindRx(3, 2), syscall.EBUSY},
		{"bind of a bound buffer", bindRx(2, 2), syscall.EBUSY},
		{"transmit from a bound buffer", bindTx(2), nil},
		{"transmit from nothing", bindTx(9), syscall.EBADF},
		{"too many bindings", func(s *State) error { s.BindTx(2, 3); s.BindTx(2, 3); _, err := s.BindTx(2, 3); return err },
			syscall.ENOSPC},
		{"too many bindings for rx", func(s *State) error { s.BindTx(2, 3); s.BindTx(2, 3); return bindRx(1, 2)(s) },
			syscall.ENOSPC},
		{"no such binding", func(s *State) error { return s.Unbind(9) }, syscall.ENOENT},
		{"bound buffer", func(s *State) error { return s.DelBuffer(2) }, syscall.EBUSY},
		{"no such buffer", twice(func(s *State) error { return s.DelBuffer(1) }), syscall.ENOENT},
		{"meters", twice(addMeter(meter)), syscall.ENOSPC},
		{"meter of ICMP", addMeter(FlowCounter{Proto: 1, Local: meter.Local, Remote: meter.Remote}), syscall.EOPNOTSUPP},
		{"meter of one end", addMeter(FlowCounter{Proto: 6, Local: meter.Local}), syscall.EINVAL},
		{"meter that goes", func(s *State) error {
			id, err := s.AddFlowCounter(meter, 1)
			return errors.Join(err, s.DelFlowCounter(id))
		}, nil},
		{"no such meter", func(s *State) error { return s.DelFlowCounter(9) }, syscall.ENOENT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := set(t)
			err := tc.do(s)
			if tc.want == nil && err != nil || !errors.Is(err, tc.want) {
				t.Fatalf("%v, want %v", err, tc.want)
			}
			s.check(t, i)
		})
	}
}

// Invariant: control: The state of a port survives JSON.
func TestStateIsJSON(t *testing.T) {
	s := NewState(1, testInfo(), [40]byte{7})
	s.AddBuffer(Buffer{ID: 1, Size: 8192})
	s.SetSplit(Split{Queue: 1, On: true})
	s.BindRx(1, []uint16{1}, 3)
	s.AddFlow(FlowRule{Proto: 6, DstPort: 1, Queue: 1}, 2)
	s.AddFlow(FlowRule{Proto: 6, IPv6: true, Src: netip.MustParseAddr("fd00::1"), Queue: 1}, 2)
	s.AddFlowCounter(FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("1.2.3.4:5"),
		Remote: netip.MustParseAddrPort("1.2.3.4:6")},
		1)
	b := testkit.Must(json.Marshal(s))(t)
	var back State
	testkit.OK(t, json.Unmarshal(b, &back))
	if d := cmp.Diff(s, &back, sameAddr); d != "" {
		t.Fatal(d)
	}
}

// Invariant: control: A command that is refused changes nothing.
func TestStateKeepsItsRules(t *testing.T) {
	i := testInfo()
	rapid.Check(t, func(t *rapid.T) {
		s := NewState(1, i, [40]byte{})
		small := func(n int, what string) int { return rapid.IntRange(0, n).Draw(t, what) }
		nextBuffer := uint32(0)
		for range small(40, "steps") {
			before, kept := s.Clone(), *s
			var err error
			q := uint16(small(4, "queue"))
			id := uint32(small(8, "id"))
			switch small(9, "command") {
			case 0:
				err = s.SetSplit(Split{Queue: q, On: rapid.Bool().Draw(t, "on"), Threshold: uint32(small(1, "threshold"))})
			case 1:
				_, err = s.AddFlow(FlowRule{Proto: 6, DstPort: uint16(small(3, "port")), Queue: q}, int(i.MaxRules))
			case 2:
				err = s.DelFlow(id)
			case 3:
				err = s.SetRSS(RSS{Table: slices.Repeat([]uint16{q}, small(5, "entries"))}, int(i.MaxRSS))
			case 4:
				nextBuffer++
				s.AddBuffer(Buffer{ID: nextBuffer, Off: uint64(small(3, "off")) * 4096, Size: 8192})
			case 5:
				err = s.DelBuffer(id)
			case 6:
				_, err = s.BindRx(id, []uint16{q, uint16(small(4, "queue"))}, int(i.MaxBindings))
			case 7:
				_, err = s.BindTx(id, int(i.MaxBindings))
			case 8, 9:
				err = s.Unbind(id)
			}
			s.check(t, i)
			if d := cmp.Diff(before, s, sameAddr); err != nil && d != "" {
				t.Fatalf("refused (%v), but changed: %s", err, d)
			}
			if d := cmp.Diff(before, &kept, sameAddr); d != "" {
				t.Fatalf("a copy of the struct was changed too: %s", d)
			}
			after := s.Clone()
			_, _ = kept.AddFlow(FlowRule{Proto: 17, DstPort: 9}, 100)
			_, _ = kept.BindTx(nextBuffer, 100)
			kept.AddBuffer(Buffer{ID: 1000, Off: 1 << 20, Size: 4096})
			if d := cmp.Diff(after, s, sameAddr); d != "" {
				t.Fatalf("changed by way of a copy of the struct: %s", d)
			}
		}
	})
}
