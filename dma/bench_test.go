package dma

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// benchPlaces is the size in bytes of the source and of the destination, each more than a first-level cache holds.
const benchPlaces = 8 << 20

// BenchmarkCopier reports "x-copy", the time divided by copy()'s time for as many bytes, if "copy" ran, too.
func BenchmarkCopier(b *testing.B) {
	files := NewFiles()
	s := NewSpace("bench", files)
	defer s.Close()
	for i, base := range []uint64{0, 1 << 30} {
		fd := memfd(b, benchPlaces)
		if err := s.Add(Map{IOVA: base, Size: benchPlaces, FD: fd}); err != nil {
			b.Fatal(i, err)
		}
	}
	t := s.table.Load()
	to, from := t.regions[0].mem, t.regions[1].mem
	for i := range from {
		from[i], to[i] = byte(i), 1
	}
	c := NewCopier()
	for _, n := range []int{64, 1448, 4096, 64 << 10} {
		var plain float64
		run := func(name string, f func(off int)) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				off := 0
				for b.Loop() {
					f(off)
					if off += n; off+n > benchPlaces {
						off = 0
					}
				}
				ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
				if name == "copy" {
					plain = ns
				} else if plain > 0 {
					b.ReportMetric(ns/plain, "x-copy")
				}
			})
		}
		seg := func(r, off int) Segment { return Segment{t.regions[r], uint64(off), uint32(n)} }
		var scratch [2][]Segment
		for i := range scratch {
			scratch[i] = make([]Segment, 0, 16)
		}
		run("copy", func(off int) { copy(to[off:off+n], from[off:off+n]) })
		run("Copy", func(off int) {
			if k, err := c.Copy([]Segment{seg(0, off)}, []Segment{seg(1, off)}); err != nil || k != uint64(n) {
				b.Fatal(k, err)
			}
		})
		run("CopySum", func(off int) {
			if k, _, err := c.CopySum([]Segment{seg(0, off)}, []Segment{seg(1, off)}); err != nil || k != uint64(n) {
				b.Fatal(k, err)
			}
		})
		run("Sum", func(off int) {
			if _, err := c.Sum([]Segment{seg(1, off)}); err != nil {
				b.Fatal(err)
			}
		})
		run("Enter-Translate-Copy", func(off int) {
			tok := s.Enter()
			dst, _ := s.Translate(scratch[0][:0], uint64(off), uint64(n), Write)
			src, _ := s.Translate(scratch[1][:0], 1<<30+uint64(off), uint64(n), Read)
			if k, err := c.Copy(dst, src); err != nil || k != uint64(n) {
				b.Fatal(k, err)
			}
			s.Leave(tok)
		})
	}
}

func BenchmarkEnter(b *testing.B) {
	s := NewSpace("bench", NewFiles())
	for b.Loop() {
		s.Leave(s.Enter())
	}
}

func BenchmarkTranslate(b *testing.B) {
	for _, n := range []int{1, 8, 512} {
		b.Run(fmt.Sprintf("regions-%d", n), func(b *testing.B) {
			s := NewSpace("bench", NewFiles())
			defer s.Close()
			fd := memfd(b, 1<<20)
			for i := range n {
				testkit.OK(b, s.Add(Map{IOVA: uint64(i) << 20, Size: 1 << 20, FD: fd}))
			}
			dst := make([]Segment, 0, 4)
			iova := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Translate(dst, iova%(uint64(n)<<20), 1448, Read); err != nil {
					iova = 0
				}
				iova += 0x12345 << 3
			}
		})
	}
}

func BenchmarkManyRegions(b *testing.B) {
	fd := memfd(b, 1<<20)
	fill := func(b *testing.B) *Space {
		s := NewSpace("bench", NewFiles())
		for i := range uint64(MaxRegions) {
			testkit.OK(b, s.Add(Map{IOVA: i << 13, Size: 4096, FD: fd}))
		}
		return s
	}
	b.Run("add", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := fill(b)
			b.StopTimer()
			_ = s.Close()
			b.StartTimer()
		}
	})
	for name, remove := range map[string]func(s *Space) error{
		"remove": func(s *Space) error {
			for i := range uint64(MaxRegions) {
				if err := s.Remove(i<<13, 4096); err != nil {
					return err
				}
			}
			return nil
		},
		"remove-range": func(s *Space) error { return s.RemoveRange(0, 1<<63) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				s := fill(b)
				b.StartTimer()
				testkit.OK(b, remove(s))
			}
		})
	}
}
