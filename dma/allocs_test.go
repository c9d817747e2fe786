//go:build !race

package dma

import (
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: hot path: Nothing is allocated for a packet.
func TestHotPathDoesNotAllocate(t *testing.T) {
	s := guestSpace(t)
	fd := memfd(t, 64*page)
	add(t, s, Map{Size: 32 * page, FD: fd})
	add(t, s, Map{IOVA: 32 * page, Size: 32 * page, FD: fd, FileOffset: 32 * page})
	f := s.Regions()[0].File
	f.SetGPU(0)
	f.Register(page, 3*page)
	c := NewCopier()
	dst, src := make([]Segment, 0, 8), make([]Segment, 0, 8)
	header := make([]byte, 66)
	count := func(b []byte) error { return nil }
	for name, f := range map[string]func() error{
		"Copy":    func() error { _, err := c.Copy(dst, src); return err },
		"CopySum": func() error { _, _, err := c.CopySum(dst, src); return err },
		"Sum":     func() error { _, err := c.Sum(src); return err },
		"Read":    func() error { _, err := c.Read(header, src); return err },
		"Write":   func() error { _, err := c.Write(dst, header); return err },
		"View":    func() error { return c.View(src[0], 1000, count) },
		"Cut":     func() error { Cut(dst[:0], src, 1, 3); return nil },
		"on the caller's stack": func() error {
			var to, from [2]Segment
			var hdr [64]byte
			if _, err := c.Read(hdr[:], append(from[:0], src[0])); err != nil {
				return err
			}
			_, err := c.Copy(append(to[:0], dst[0]), append(from[:0], src[0]))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := testing.AllocsPerRun(1000, func() {
				token := s.Enter()
				var err error
				if dst, err = s.Translate(dst[:0], 10*page, 2*page, Write); err != nil {
					t.Fatal(err)
				}
				if src, err = s.Translate(src[:0], 31*page+1, 2*page, Read); err != nil {
					t.Fatal(err)
				}
				testkit.OK(t, f())
				s.Leave(token)
			})
			if n != 0 {
				t.Fatalf("allocates %v times", n)
			}
		})
	}
}
