package splitter

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRulesMatchTheMostExactRule(t *testing.T) {
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
	r := NewRules(0)
	for _, rule := range []Rule{
		{ID: 1, Fields: FieldDst, Flow: f, Queue: 1},
		{ID: 2, Fields: FieldDst | FieldDstPort, Flow: f, Queue: 2},
		{ID: 3, Fields: FieldsAll, Flow: f, Queue: 3},
		{ID: 4, Fields: FieldSrc | FieldSrcPort, Flow: f, Queue: 4},
	} {
		if err := r.Add(rule); err != nil {
			t.Fatal(err)
		}
	}
	look := func(f Flow, want uint16, found bool) {
		t.Helper()
		if q, ok := r.Lookup(&f); q != want || ok != found {
			t.Errorf("%+v: queue %d, %v, want %d, %v", f, q, ok, want, found)
		}
	}
	look(f, 3, true)
	other := f
	other.SrcPort = 1001
	look(other, 2, true)
	other.DstPort = 1
	look(other, 1, true)
	other.Dst[3] = 9
	look(other, 0, false)
	other.SrcPort = f.SrcPort
	look(other, 4, true)
	v6 := f
	v6.IPv6 = true
	look(v6, 0, false)
	fragment := f
	fragment.SrcPort, fragment.DstPort = 0, 0
	look(fragment, 1, true) // the rule without ports only

	for _, id := range []uint32{3, 2} {
		if err := r.Del(id); err != nil {
			t.Fatal(err)
		}
	}
	look(f, 4, true)
	if err := r.Del(3); !errors.Is(err, ErrNoRule) {
		t.Errorf("second Del: %v", err)
	}
	if r.Len() != 2 || r.List()[0].ID != 1 || r.List()[1].ID != 4 {
		t.Errorf("left: %+v", r.List())
	}
}

func TestRulesRefuse(t *testing.T) {
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
	r := NewRules(2)
	if err := r.Add(Rule{ID: 1, Fields: FieldDst, Flow: f}); err != nil {
		t.Fatal(err)
	}
	long := f
	long.Src[4] = 1
	icmp := f
	icmp.Proto = 1
	for name, c := range map[string]struct {
		rule Rule
		want error
	}{
		"no fields":          {Rule{ID: 2, Flow: f}, ErrBadRule},
		"unknown fields":     {Rule{ID: 2, Flow: f, Fields: 0x80}, ErrBadRule},
		"port 0":             {Rule{ID: 2, Fields: FieldDstPort}, ErrBadRule},
		"ports of icmp":      {Rule{ID: 2, Fields: FieldsAll, Flow: icmp}, ErrBadRule},
		"long IPv4":          {Rule{ID: 2, Fields: FieldDst, Flow: long}, ErrBadRule},
		"same id":            {Rule{ID: 1, Fields: FieldSrc, Flow: f}, ErrRuleExists},
		"same match":         {Rule{ID: 2, Fields: FieldDst, Flow: Flow{Dst: f.Dst, SrcPort: 9}}, ErrRuleExists},
		"same dst, with IP6": {Rule{ID: 2, Fields: FieldDst, Flow: Flow{Dst: f.Dst, IPv6: true}}, nil},
	} {
		if err := r.Add(c.rule); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Add(Rule{ID: 3, Fields: FieldSrc, Flow: f}); !errors.Is(err, ErrRulesFull) {
		t.Errorf("too many: %v", err)
	}
}

func TestRulesChangeUnderLookups(t *testing.T) {
	r := NewRules(0)
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
	if err := r.Add(Rule{ID: 1, Fields: FieldDst, Flow: f, Queue: 7}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if q, ok := r.Lookup(&f); !ok || q != 7 && q != 8 {
					t.Errorf("queue %d, %v", q, ok)
					return
				}
			}
		})
	}
	for range 500 {
		if err := r.Add(Rule{ID: 2, Fields: FieldsAll, Flow: f, Queue: 8}); err != nil {
			t.Error(err)
		}
		if err := r.Del(2); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	if d := cmp.Diff([]Rule{{ID: 1, Fields: FieldDst, Flow: Flow{Dst: f.Dst}, Queue: 7}}, r.List()); d != "" {
		t.Error(d)
	}
}

func BenchmarkLookup(b *testing.B) {
	r := NewRules(0)
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
	for i := range 100 {
		f.SrcPort++
		if err := r.Add(Rule{ID: uint32(i), Fields: FieldsAll, Flow: f}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Lookup(&f)
	}
}
