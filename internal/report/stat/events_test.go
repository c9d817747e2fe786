package stat

import (
	"fmt"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: vnic stat: A port's latest events are kept and shown however many events other ports
// have.
func TestEventsOfOnePortPushOutNobodyElses(t *testing.T) {
	var e events
	e.add(Event{Port: "quiet", Kind: "binding", Text: "first"})
	for i := range 10_000 {
		e.add(Event{Port: "loud", Kind: "rule", Text: fmt.Sprint(i)})
	}
	e.add(Event{Port: "quiet", Kind: "binding", Text: "last"})
	list := e.read()
	testkit.Equal(t, "events", len(list), portEvents+2)
	testkit.Equal(t, "oldest", list[0].Text, "first")
	testkit.Equal(t, "last", list[len(list)-1].Text, "last")
	testkit.Equal(t, "the loud one's last", list[len(list)-2].Text, "9999")
	if !slices.IsSortedFunc(list, func(a, b Event) int { return int(a.Seq) - int(b.Seq) }) {
		t.Error("not in order")
	}
	for p := range 100 { // more events than read can show
		for i := range p * 10 {
			e.add(Event{Port: fmt.Sprint("port", p), Text: fmt.Sprint(i)})
		}
	}
	counts := map[string]int{}
	for _, x := range e.read() {
		counts[x.Port]++
	}
	for p, least := range map[string]int{"quiet": 2, "port1": 5, "port99": 5, "loud": 5} {
		if counts[p] < least {
			t.Errorf("%s: %d are shown", p, counts[p])
		}
	}
	if n := len(e.read()); n > shownEvents {
		t.Errorf("%d are shown", n)
	}
}

func TestChangesAreFoundInOneWalk(t *testing.T) {
	looks := 0
	id := func(r *control.FlowRule) uint32 { looks++; return r.ID }
	ids := func(list []control.FlowRule) (all []uint32) {
		for _, r := range list {
			all = append(all, r.ID)
		}
		return all
	}
	var before, now []control.FlowRule
	for i := range uint32(1024) {
		before = append(before, control.FlowRule{ID: 2*i + 2})
		now = append(now, control.FlowRule{ID: 2*i + 3})
	}
	for name, c := range map[string]struct {
		before, now []control.FlowRule
		want        []uint32
	}{
		"nothing":   {before, before, nil},
		"all":       {before, now, ids(now)},
		"first":     {before[1:], before, []uint32{2}},
		"last":      {before[:1023], before, []uint32{2048}},
		"between":   {slices.Concat(before[:500], before[501:]), before, []uint32{1002}},
		"from none": {nil, before[:3], []uint32{2, 4, 6}},
		"to none":   {before, nil, nil},
	} {
		looks = 0
		testkit.Equal(t, name, fmt.Sprint(ids(added(c.before, c.now, id))), fmt.Sprint(c.want))
		if most := 3 * (len(c.before) + len(c.now)); looks > most {
			t.Errorf("%s: %d looks, %d at most", name, looks, most)
		}
	}
}
