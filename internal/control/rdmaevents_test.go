package control

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/testkit"
)

func TestOnRDMATellsEachThatAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, p := connect(t, ClientOptions{})
		var cqs, gens []uint32
		var pages []PageRequest
		undo := c.OnRDMA(RDMAEvents{
			Completions: func(cq uint32) { cqs = append(cqs, cq) },
			Reset:       func(old, now uint32) { gens = append(gens, old, now) },
		})
		defer c.OnRDMA(RDMAEvents{Pages: func(r PageRequest) { pages = append(pages, r) }})()
		r := PageRequest{ID: 7, Key: 1, Count: 2, Write: true}
		testkit.Must(c.Hello(t.Context()))(t)
		l.deliver(l.d.NotifyCompletions(nil, driverMAC, 5))
		l.deliver(l.d.NotifyPages(nil, driverMAC, &r))
		p.s.Generation = 78
		l.deliver(l.d.NotifyCompletions(nil, driverMAC, 6))
		testkit.Must(c.Hello(t.Context()))(t)
		p.s.Generation = 79
		testkit.Must(c.Hello(t.Context()))(t)
		if !slices.Equal(cqs, []uint32{5, 6}) || !slices.Equal(gens, []uint32{77, 78, 78, 79}) {
			t.Errorf("CQs %v, generations %v", cqs, gens)
		}
		undo()
		p.s.Generation = 80
		l.deliver(l.d.NotifyCompletions(nil, driverMAC, 8))
		l.deliver(l.d.NotifyPages(nil, driverMAC, &r))
		if len(cqs) != 2 || len(gens) != 4 {
			t.Errorf("told after undo: CQs %v, generations %v", cqs, gens)
		}
		if d := cmp.Diff([]PageRequest{r, r}, pages); d != "" {
			t.Error(d)
		}
	})
}

func TestBadNotifiesAreStrays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, p := connect(t, ClientOptions{})
		defer c.OnRDMA(RDMAEvents{
			Completions: func(cq uint32) { t.Errorf("told of CQ %d", cq) },
			Pages:       func(r PageRequest) { t.Errorf("told of %+v", r) },
			Reset:       func(old, now uint32) { t.Errorf("told of a reset, %d to %d", old, now) },
		})()
		testkit.Must(c.Hello(t.Context()))(t)
		p.s.Generation = 78
		for _, n := range []struct {
			cmd  Command
			data []byte
		}{
			{RDMACompletions, nil}, {RDMACompletions, make([]byte, 3)}, {RDMACompletions, make([]byte, 5)},
			{RDMAPages, nil}, {RDMAPages, make([]byte, 23)}, {RDMAPages, slices.Repeat([]byte{2}, 24)},
			{RDMAInfo, make([]byte, 48)}, {99, make([]byte, 4)},
		} {
			f := Frame{Dst: driverMAC, Src: MAC, Data: n.data}
			f.Kind, f.Class, f.Command, f.Generation = KindNotify, ClassRDMA, n.cmd, 78
			l.deliver(f.Append(nil))
		}
		if s := c.Stats(); s.Strays != 8 || s.Notifies != 0 || c.Generation() != 77 {
			t.Errorf("%+v, generation %d", s, c.Generation())
		}
	})
}
