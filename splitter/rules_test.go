package splitter

import (
	"errors"
	"math/rand/v2"
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
	look(r, fragment, 1, true) // only the rule without ports matches

	fewer, err := NewRules([]Rule{all[0], all[3]})
	testkit.OK(t, err)
	look(fewer, f, 4, true)
	look(r, f, 3, true) // the earlier table has not changed
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
	look(grown, same, 2, true) // matches rules 1 and 2
	look(grown, f, 3, true)
	if none, err := NewRules(nil); err != nil {
		t.Error(err)
	} else {
		look(none, f, 0, false)
	}
}

func TestRulesFindFrames(t *testing.T) {
	headers := func(b []byte) Headers { return parsed(t, b) }
	sctp, esp, ah4, ah6 := headers(other(tcp4(0), ProtoSCTP, 12)), headers(other(tcp6(0), ProtoESP, 12)),
		headers(other(tcp4(0), ProtoAH, 24)), headers(ahOf(tcp6(1)))
	list := []Rule{
		{ID: 1, Fields: FieldProto | FieldDstPort, Flow: sctp.Flow, Queue: 1},
		{ID: 2, Fields: FieldProto | fieldPorts, Flow: esp.Flow, Queue: 2},
		{ID: 3, Fields: FieldProto | fieldPorts, Flow: ah4.Flow, Queue: 3},
		{ID: 4, Fields: FieldProto | fieldPorts, Flow: Flow{IPv6: true, Proto: ProtoAH, SrcPort: 0x0102, DstPort: 0x0304},
			Queue: 4},
	}
	r := testkit.Must(NewRules(list))(t)
	look := func(name string, r *Rules, h Headers, want uint16) { // want 0: no rule matches
		t.Helper()
		if q, ok := r.LookupFrame(&h); q != want || ok != (want != 0) {
			t.Errorf("%s: queue %d, %v", name, q, ok)
		}
	}
	look("sctp", r, sctp, 1)
	look("esp", r, esp, 2)
	look("ah4", r, ah4, 3)
	look("ah6", r, ah6, 4)
	for _, h := range []*Headers{&sctp, &esp, &ah4} {
		h.Flow.DstPort++
	}
	other := ah6
	other.AHSPI++
	look("another sctp", r, sctp, 0)
	look("another esp", r, esp, 0)
	look("another ah4", r, ah4, 0)
	look("another ah6", r, other, 0)
	inner := testkit.Must(r.With(Rule{ID: 5, Fields: FieldProto | FieldDst, Flow: ah6.Flow, Queue: 5}))(t)
	look("TCP in ah6", inner, ah6, 5)
	look("no rules", new(Rules), ah6, 0)
}

func TestRulesRefuse(t *testing.T) {
	f := flow("10.0.0.1:1000", "10.0.0.2:2000")
	long := f
	long.Src[4] = 1
	icmp := f
	icmp.Proto = 1
	half := Flow{Proto: ProtoESP, DstPort: 1}
	for name, c := range map[string]struct {
		rule Rule
		want error
	}{
		"no fields":          {Rule{ID: 2, Flow: f}, ErrBadRule},
		"unknown fields":     {Rule{ID: 2, Flow: f, Fields: 0x80}, ErrBadRule},
		"port 0":             {Rule{ID: 2, Fields: FieldDstPort}, ErrBadRule},
		"ports of icmp":      {Rule{ID: 2, Fields: FieldsAll, Flow: icmp}, ErrBadRule},
		"half an SPI":        {Rule{ID: 2, Fields: FieldProto | FieldDstPort, Flow: half}, ErrBadRule},
		"SPI 0":              {Rule{ID: 2, Fields: FieldProto | fieldPorts, Flow: Flow{Proto: ProtoAH}}, ErrBadRule},
		"SPI of 2^16":        {Rule{ID: 2, Fields: FieldProto | fieldPorts, Flow: Flow{Proto: ProtoAH, SrcPort: 1}}, nil},
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

func TestRulesAnswerAsAList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	some := func() Flow { // few distinct values, so that rules and flows often match
		f := Flow{Proto: []uint8{ProtoTCP, ProtoUDP}[r.IntN(2)], IPv6: r.IntN(2) == 0, SrcPort: uint16(1 + r.IntN(20)),
			DstPort: uint16(1 + r.IntN(20))}
		f.Src[r.IntN(4)], f.Dst[r.IntN(4)] = byte(r.IntN(3)), byte(r.IntN(3))
		if f.IPv6 {
			f.Src[8+r.IntN(8)], f.Dst[15] = byte(r.IntN(2)), byte(r.IntN(2))
		}
		return f
	}
	matches := func(rule *Rule, f Flow) bool {
		g, m := rule.Flow, rule.Fields
		return f.IPv6 == g.IPv6 && (m&FieldSrc == 0 || f.Src == g.Src) && (m&FieldDst == 0 || f.Dst == g.Dst) &&
			(m&FieldSrcPort == 0 || f.SrcPort == g.SrcPort) && (m&FieldDstPort == 0 || f.DstPort == g.DstPort) &&
			(m&FieldProto == 0 || f.Proto == g.Proto)
	}
	var list []Rule
	grown := new(Rules)
	for len(list) < 600 {
		rule := Rule{ID: uint32(len(list)), Fields: Fields(1+r.IntN(int(FieldsAll))) | FieldSrcPort | FieldDst, Flow: some(),
			Queue: uint16(r.IntN(1 << 16))}
		next, err := grown.With(rule)
		if errors.Is(err, ErrRuleExists) {
			continue
		}
		testkit.OK(t, err)
		list, grown = append(list, rule), next
	}
	whole := testkit.Must(NewRules(list))(t)
	hits := 0
	for range 20000 {
		f := some()
		best := -1
		for i := range list {
			if matches(&list[i], f) && (best < 0 || list[i].Fields.weight() > list[best].Fields.weight()) {
				best = i
			}
		}
		want := uint16(0)
		if best >= 0 {
			hits++
			want = list[best].Queue
		}
		for _, table := range []*Rules{whole, grown} {
			if q, ok := table.Lookup(&f); q != want || ok != (best >= 0) {
				t.Fatalf("%+v: queue %d, %v, want %d, %v", f, q, ok, want, best >= 0)
			}
		}
	}
	if hits < 1000 || hits > 19900 {
		t.Errorf("%d of 20000 flows met a rule", hits)
	}
}
