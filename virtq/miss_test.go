package virtq

import (
	"errors"
	"slices"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// fakeIOMMU fills the IOTLB, at first empty, of a guest's device.
type fakeIOMMU struct {
	t     *testing.T
	g     *guest
	fills []uint64 // the addresses that missed
}

func newFakeIOMMU(t *testing.T) *fakeIOMMU {
	u := &fakeIOMMU{t: t, g: newGuest(t)}
	testkit.OK(t, u.g.space.Close())
	u.g.space.SetIOTLB(true)
	return u
}

// fill adds an entry for the miss err: the page, or all memory of the rings.
func (u *fakeIOMMU) fill(err error) {
	u.t.Helper()
	var miss *dma.AddrError
	if !errors.As(err, &miss) || !errors.Is(err, dma.ErrMiss) || errors.Is(err, dma.ErrUnmapped) ||
		errors.Is(err, ErrBadChain) || errors.Is(err, ErrBadRing) {
		u.t.Fatalf("got %v, want a translation miss", err)
	}
	for _, m := range u.g.maps() {
		if miss.IOVA < m.IOVA || miss.IOVA-m.IOVA >= m.Size {
			continue
		}
		if page := miss.IOVA &^ (pageLen - 1); m.IOVA != ringIOVA {
			m.FileOffset += page - m.IOVA
			m.IOVA, m.Size = page, pageLen
		}
		u.fills = append(u.fills, miss.IOVA)
		testkit.OK(u.t, u.g.space.Add(m))
		return
	}
	u.t.Fatalf("the guest has nothing at %#x", miss.IOVA)
}

// filling calls f inside the space, and again after each miss.
func (u *fakeIOMMU) filling(q *Device, f func() error) {
	u.t.Helper()
	for {
		base, held := q.Base(), q.Held()
		var err error
		u.g.inside(func() { err = f() })
		if err == nil {
			return
		}
		if q.Err() != nil || q.Base() != base || q.Held() != held || held == 0 && !(q.Pending() && q.EnableKick()) {
			u.t.Fatalf("after %v: error %v, base %v was %v, %d held, were %d", err, q.Err(), q.Base(), base, q.Held(), held)
		}
		u.fill(err)
	}
}

// TestATranslationMissStopsNothing makes calls for which the IOTLB lacks entries.
//
// Invariant: virtq: A translation miss consumes nothing and stops nothing: the same call succeeds once the
// IOTLB is filled.
func TestATranslationMissStopsNothing(t *testing.T) {
	u := newFakeIOMMU(t)
	g := u.g
	r := newRaw(g, rawConfig)
	// Head 0: a table that crosses a page's end, a buffer in three pages, one across the seam.
	const tableIOVA, readIOVA, pageIOVA = bufIOVA + 2*pageLen - descLen, bufIOVA + 8*pageLen + 7, bufIOVA + 32*pageLen
	r.desc(0, desc{addr: tableIOVA, len: 2 * descLen, flags: flagIndirect})
	r.table(tableIOVA, desc{addr: readIOVA, len: 2 * pageLen, flags: flagNext, next: 1},
		desc{addr: seamIOVA - 4, len: 8, flags: flagWrite})
	for i := 1; i < 3; i++ {
		r.desc(i, desc{addr: pageIOVA + uint64(i)*pageLen, len: 4})
	}
	r.offer(0, 1, 2)
	g.write(readIOVA, []byte("dma.Miss"))

	_, err := NewDevice(g.space, r.conf)
	u.fill(err)
	q := r.device(t)
	var c Chain
	u.filling(q, func() error {
		ok, err := q.Peek(&c)
		if ok != (err == nil) {
			t.Errorf("peeked: %t with %v", ok, err)
		}
		if err == nil {
			_, err = dma.NewCopier().Copy(c.In, c.Out)
		}
		return err
	})
	want := []uint64{ringIOVA, tableIOVA, tableIOVA + descLen, readIOVA, bufIOVA + 9*pageLen, bufIOVA + 10*pageLen,
		seamIOVA - 4, seamIOVA}
	if !slices.Equal(u.fills, want) {
		t.Errorf("filled at %#x, want %#x", u.fills, want)
	}
	if got := string(g.buffer(seamIOVA-4, 4)) + string(g.buffer(seamIOVA, 4)); got != "dma.Miss" || c.OutLen != 2*pageLen {
		t.Errorf("moved %q of a chain of %d bytes", got, c.OutLen)
	}

	testkit.OK(t, g.space.Add(dma.Map{IOVA: pageIOVA + pageLen, Size: pageLen, FD: g.fd}))
	cs := make([]Chain, 4)
	var n int
	g.inside(func() { n, err = q.PeekBatch(cs) })
	if n != 1 || cs[0].Head != 1 || q.Held() != 2 || q.Err() != nil {
		t.Fatalf("%d chains before a miss, %d held: %v", n, q.Held(), q.Err())
	}
	u.fill(err)
	g.inside(func() { n, err = q.PeekBatch(cs) })
	if n != 1 || cs[0].Head != 2 || err != nil || q.Pending() {
		t.Fatalf("%d chains after the miss: %v", n, err)
	}

	testkit.OK(t, g.space.Remove(pageIOVA+2*pageLen, pageLen))
	u.fills = nil
	u.filling(q, func() error { return q.Load(2, &c) })
	if !slices.Equal(u.fills, []uint64{pageIOVA + 2*pageLen}) || c.OutLen != 4 || q.Held() != 3 {
		t.Fatalf("filled at %#x, %d held", u.fills, q.Held())
	}
	testkit.OK(t, g.space.Remove(ringIOVA, mib))
	u.fill(q.Repin())
	testkit.OK(t, q.Repin())
	for _, head := range []uint16{2, 0, 1} {
		q.Commit(head, 8)
	}
	if q.Publish(); r.usedIdx() != 3 || q.Err() != nil {
		t.Errorf("used.idx is %d: %v", r.usedIdx(), q.Err())
	}
}

// An access that an IOTLB entry denies becomes the chain's Fault, and so does unmapped memory without an IOTLB.
func TestWhatNoIOTLBCanMendIsTheChainsFault(t *testing.T) {
	for _, iotlb := range []bool{true, false} {
		u := newFakeIOMMU(t)
		testkit.OK(t, u.g.space.Add(u.g.maps()[0]))
		testkit.OK(t, u.g.space.Add(u.g.maps()[3])) // read-only
		u.g.space.SetIOTLB(iotlb)
		r := newRaw(u.g, rawConfig)
		d, want := desc{addr: roIOVA, len: 1, flags: flagWrite}, dma.ErrAccess
		if !iotlb {
			d, want = desc{addr: bufIOVA, len: 1}, dma.ErrUnmapped
		}
		r.desc(0, d)
		r.offer(0)
		q := r.device(t)
		u.g.inside(func() {
			var c Chain
			if ok, err := q.Peek(&c); !ok || err != nil || !errors.Is(c.Fault, want) || errors.Is(c.Fault, ErrBadChain) {
				t.Errorf("IOTLB %t: %v, %v, fault %v", iotlb, ok, err, c.Fault)
			}
		})
	}
	u := newFakeIOMMU(t)
	u.g.space.SetIOTLB(false)
	if _, err := NewDevice(u.g.space, rawConfig); !errors.Is(err, ErrBadRing) || !errors.Is(err, dma.ErrUnmapped) {
		t.Errorf("ring: %v", err)
	}
}
