package dma

import (
	"math"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// A Translator does not use its last region any more once the space has unmapped that region.
//
// Invariant: dma: A translation stays inside mapped regions, and checks the access right of each.
func TestTranslatorForgetsWhatIsUnmapped(t *testing.T) {
	s := guestSpace(t)
	tr := NewTranslator(s)
	ask := func(a Access) (*File, error) {
		defer s.Leave(s.Enter())
		segs, err := tr.TranslateMax(nil, math.MaxInt, page+8, 16, a)
		if err != nil {
			return nil, err
		}
		return segs[0].Region.File(), nil
	}
	refuses := func(a Access, want error) {
		t.Helper()
		_, err := ask(a)
		testkit.ErrorIs(t, err, want)
	}
	refuses(Read, ErrUnmapped)
	first := Map{IOVA: page, Size: page, FD: memfd(t, page)}
	testkit.OK(t, s.Add(first))
	was := testkit.Must(ask(Write))(t)
	testkit.OK(t, s.Remove(page, page))
	refuses(Read, ErrUnmapped)
	testkit.OK(t, s.Add(Map{IOVA: page, Size: page, FD: memfd(t, page), ReadOnly: true}))
	if now := testkit.Must(ask(Read))(t); now == was {
		t.Error("the file that was mapped before")
	}
	refuses(Write, ErrAccess)
	testkit.OK(t, s.Replace([]Map{first}))
	testkit.OK(t, testkit.Err(ask(Write)))
	testkit.OK(t, s.Close())
	refuses(Write, ErrUnmapped)
}
