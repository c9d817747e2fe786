package nictest

import (
	"bytes"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// Invariant: nic: A frame arrives with the length that was sent, except for the padding of a runt.
func trailer(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	behind := []byte("a trailer of 20 bytes")[:20]
	for name, s := range map[string]Spec{"TCP": {Payload: 100}, "odd": {Payload: 101}, "UDP": {UDP: true, Payload: 100},
		"IPv6": {V6: true, Payload: 100}, "none": {V6: true}, "tagged": {VLANs: 1, Payload: 33}} {
		for _, port := range []uint16{2000, 2001} {
			for _, partial := range []bool{true, false} {
				s.Port = port
				f := Make(b.MAC(), a.MAC(), s)
				var h splitter.Headers
				must(t, splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h))
				want := f
				want.Header, want.Payload = bytes.Clone(f.Header), append(bytes.Clone(f.Payload), behind...)
				splitter.FixL4(&h, want.Header, uint32(s.Payload), splitter.Sum(f.Payload, 0))
				f.Payload = want.Payload
				if f.Partial = partial; !partial {
					f.Header = want.Header
				}
				q := 0
				if port == 2000 && !s.UDP {
					q = 1
				}
				b.Post(q, 1)
				a.Send(0, f)
				got := b.Receive(q)
				if !bytes.Equal(got.Bytes(), want.Bytes()) || got.Split != (q == 1) || got.Partial || got.Good && !partial ||
					got.Dirty {
					t.Errorf("%s, port %d, partial %v: %d+%d bytes, split %v, partial %v, good %v\n got %x\nwant %x", name, port,
						partial, len(got.Header), len(got.Payload), got.Split, got.Partial, got.Good, got.Bytes(), want.Bytes())
				}
			}
		}
	}
	for _, c := range []struct {
		name         string
		s            Spec
		behind, left int
	}{{"runt", Spec{}, 6, 0}, {"runt with a tag", Spec{VLANs: 1}, 6, 0}, {"one more", Spec{}, 7, 7},
		{"runt of UDP", Spec{UDP: true, Payload: 1}, 17, 0}} {
		f := Make(b.MAC(), a.MAC(), c.s)
		want := f.Bytes()
		f.Payload = append(f.Payload, make([]byte, c.behind)...)
		b.Post(0, 1)
		b.Post(1, 1)
		a.Send(0, f)
		q := 1
		if c.s.UDP {
			q = 0
		}
		got := b.Receive(q)
		testkit.Equal(t, c.name+": length", len(got.Bytes()), len(want)+c.left)
	}
	// The frame with a trailer must not be merged.
	s := tcpStream{a: a, b: b, source: 1000, spec: Spec{Port: 2001}}
	fs := s.frames(9*1000, 1000)
	whole := fs[4].complete(t)
	fs[4].Payload = append(bytes.Clone(fs[4].Payload), behind...)
	b.Post(0, len(fs))
	a.Send(0, fs...)
	for i, found := 0, false; i < len(fs); {
		got := b.Receive(0)
		if got.GSO == splitter.GSONone && len(got.Bytes()) == len(whole)+len(behind) {
			found = true
			testkit.Equal(t, "place of the frame with a trailer", i, 4)
			if !bytes.Equal(got.Bytes(), append(bytes.Clone(whole), behind...)) {
				t.Error("the frame with a trailer is another")
			}
			i++
			continue
		}
		for _, x := range got.cut(t) {
			if i == 4 || !bytes.Equal(x, fs[i].complete(t)) {
				t.Fatalf("frame %d is another (%v)", i, found)
			}
			i++
		}
	}
}
