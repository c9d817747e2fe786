package splitter

import (
	"errors"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

func TestRulesMatchTheMostExactRule(t *testing.T) {
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
	all := []Rule{
		{ID: 1, Fields: FieldDst, Flow: f, Queue: 1},
		{ID: 2, Fields: FieldDst | FieldDstPort, Flow: f, Queue: 2},
		{ID: 3, Fields: FieldsAll, Flow: f, Queue: 3},
		{ID: 4, Fields: FieldSrc | FieldSrcPort, Flow: f, Queue: 4},
	}
	r := testkit.Must(NewRules(all))(t)
	look := func(r *Rules, f Flow, want uint16, found bool) {
		t.Helper()
		if q, ok := r.Lookup(&f); q != want || ok != found {
			t.Errorf("%+v: queue %d, %v, want %d, %v", f, q, ok, want, found)
		}
	}
	look(r, f, 3, true)
	other := f
	other.SrcPort = 1001
	look(r, other, 2, true)
	other.DstPort = 1
	look(r, other, 1, true)
	other.Dst[3] = 9
	look(r, other, 0, false)
	other.SrcPort = f.SrcPort
	look(r, other, 4, true)
	v6 := f
	v6.IPv6 = true
	look(r, v6, 0, false)
	fragment := f
	fragment.SrcPort, fragment.DstPort = 0, 0
	look(r, fragment, 1, true) // the rule without ports only

	fewer, err := NewRules([]Rule{all[0], all[3]})
	testkit.OK(t, err)
	look(fewer, f, 4, true)
	look(r, f, 3, true) // the table of before is what it was
	look(new(Rules), f, 0, false)
	grown := new(Rules)
	for i := range all {
		was := grown
		if grown, err = was.With(all[i]); err != nil {
			t.Fatal(err)
		}
		testkit.ErrorIs(t, testkit.Err(grown.With(all[i])), ErrRuleExists, "rule %d twice", i)
		if i == 0 {
			look(was, f, 0, false)
		}
	}
	same := f
	same.SrcPort++
	more, err := grown.With(Rule{ID: 5, Fields: FieldsAll, Flow: same, Queue: 5})
	testkit.OK(t, err)
	look(more, same, 5, true)
	look(grown, same, 2, true) // of all but the one
	look(grown, f, 3, true)
	if none, err := NewRules(nil); err != nil {
		t.Error(err)
	} else {
		look(none, f, 0, false)
	}
}

func TestRulesRefuse(t *testing.T) {
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
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
		"same match":         {Rule{ID: 2, Fields: FieldDst, Flow: Flow{Dst: f.Dst, SrcPort: 9}}, ErrRuleExists},
		"same dst, with IP6": {Rule{ID: 2, Fields: FieldDst, Flow: Flow{Dst: f.Dst, IPv6: true}}, nil},
		"more fields":        {Rule{ID: 2, Fields: FieldDst | FieldSrc, Flow: f}, nil},
	} {
		r, err := NewRules([]Rule{{ID: 1, Fields: FieldDst, Flow: f}, c.rule})
		if !errors.Is(err, c.want) || (r == nil) != (err != nil) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
		if r, err = NewRules([]Rule{{ID: 1, Fields: FieldDst, Flow: f}}); err != nil {
			t.Fatal(err)
		}
		if r, err = r.With(c.rule); !errors.Is(err, c.want) || (r == nil) != (err != nil) {
			t.Errorf("%s, with: %v, %v", name, r, err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	var list []Rule
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
	for i := range 100 {
		f.SrcPort++
		list = append(list, Rule{ID: uint32(i), Fields: FieldsAll, Flow: f})
	}
	r := testkit.Must(NewRules(list))(b)
	b.ReportAllocs()
	for b.Loop() {
		r.Lookup(&f)
	}
}
