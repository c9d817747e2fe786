//go:build !race

package virtq

import (
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// TestHotPathsDoNotAllocate sends batches of 32 chains through both ends, direct and indirect.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestHotPathsDoNotAllocate(t *testing.T) {
	for _, indirect := range []bool{false, true} {
		g := newGuest(t)
		dr, dev := g.ends(t, 256, indirect, true)
		copier := dma.NewCopier()
		out := []Buf{{bufIOVA, 66}, {seamIOVA - 700, 1400}} // the second straddles regions
		in := []Buf{{bufIOVA + 0x8000, 2048}}
		var chains [batch]Chain
		var used [batch]Used
		round := func() {
			for i := range chains {
				testkit.OK(t, dr.Add(out, in, uint32(i)))
			}
			dr.Publish()
			dev.DisableKick()
			tok := g.space.Enter()
			for i := range chains {
				peek(t, dev, &chains[i])
			}
			dev.Rewind(batch)
			for i := range chains {
				peek(t, dev, &chains[i])
			}
			for i := range chains {
				c := &chains[batch-1-i]
				testkit.OK(t, dev.Load(c.Head, c))
				testkit.OK(t, testkit.Err(copier.Copy(c.In, c.Out)))
				dev.Commit(c.Head, c.OutLen)
			}
			g.space.Leave(tok)
			dev.Publish()
			if dev.EnableKick() || dr.EnableCall() != true {
				t.Fatal("more, or nothing")
			}
			dr.DisableCall()
			if n, err := dr.Poll(used[:]); n != batch || err != nil {
				t.Fatal(n, err)
			}
		}
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("indirect %v: %v allocations for %d packets", indirect, n, batch)
		}
	}
}
