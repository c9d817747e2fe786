package dma

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

type modelPage struct {
	mapped, ro, none bool
	file, page       int // index of the file in fds, and of the page in the file; unused if none
	region           int // number of the Map that mapped the page
}

// The model is an array of pages. If the input's first byte is 0x80 or more, they are the last pages of the address
// space, where the arithmetic of Space might wrap.
//
// Invariant: dma: A translation stays inside mapped regions, and checks the access right of each.
func FuzzSpace(f *testing.F) {
	f.Add([]byte{0, 0, 4, 0, 0, 0, 4, 4, 1, 0, 3, 0, 9, 200, 30, 1})
	f.Add([]byte{0, 60, 4, 0, 0, 3, 0, 255, 255, 255, 0, 1, 60, 4, 4, 0, 0, 0, 0})
	f.Add([]byte{2, 2, 0, 4, 1, 0, 8, 4, 5, 0, 3, 0, 0, 10, 10, 0})
	const files, filePages, window = 3, 16, 64
	var fds [files]int // written below; f.Fuzz's function only reads them
	for i := range fds {
		fds[i] = memfd(f, filePages*page)
		var tag [filePages * page]byte
		for j := range tag {
			tag[j] = tagOf(i, j)
		}
		if _, err := unix.Pwrite(fds[i], tag[:], 0); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		reg := NewFiles()
		s := NewSpace("fuzz", reg)
		defer func() {
			s.Close()
			if reg.Len() != 0 {
				t.Errorf("%d files are mapped still", reg.Len())
			}
		}()
		var model [window]modelPage
		base, adds, gen := uint64(0), 0, uint64(0)
		if len(ops) > 0 && ops[0]&0x80 != 0 {
			base = uint64(1<<64 - window*page)
		}
		next := func() int {
			if len(ops) == 0 {
				return 0
			}
			b := ops[0]
			ops = ops[1:]
			return int(b)
		}
		// arg makes a Map from the input and adds its pages to the model m. If Add must refuse the Map, arg returns
		// Add's error, and m is unchanged.
		arg := func(m *[window]modelPage) (Map, error) {
			start, n, file, from, flags := next()%window, next()%(filePages+2), next()%files, next()%filePages, next()
			x := Map{IOVA: base + uint64(start*page), Size: uint64(n * page), FD: fds[file], FileOffset: uint64(from * page),
				ReadOnly: flags&1 != 0, NoAccess: flags&6 == 6}
			switch {
			case n == 0:
				return x, unix.EINVAL
			case start+n > window && base != 0:
				return x, unix.EINVAL
			case start+n > window:
				x.Size = uint64((window - start) * page)
				n = window - start
			}
			if !x.NoAccess && from+n > filePages {
				return x, ErrBadFile
			}
			for i := start; i < start+n; i++ {
				if m[i].mapped {
					return x, unix.EEXIST
				}
			}
			adds++
			for i := start; i < start+n; i++ {
				m[i] = modelPage{true, x.ReadOnly, x.NoAccess, file, from + i - start, adds}
			}
			return x, nil
		}
		c, tr := NewCopier(), NewTranslator(s)
		for len(ops) > 0 {
			switch next() & 7 {
			case 0, 1:
				m, want := arg(&model)
				if err := s.Add(m); !errors.Is(err, want) {
					t.Fatalf("Add(%+v): %v, want %v", m, err, want)
				} else if err == nil {
					gen++
				}
			case 2:
				start, n := next()%window, next()%(filePages+1)
				ok := n > 0 && start+n <= window && model[start].mapped &&
					(start == 0 || model[start-1].region != model[start].region) &&
					(start+n == window || model[start+n].region != model[start].region)
				for i := start; ok && i < start+n; i++ {
					ok = model[i].mapped && model[i].region == model[start].region
				}
				err := s.Remove(base+uint64(start*page), uint64(n*page))
				if ok != (err == nil) || err != nil && !errors.Is(err, unix.ENOENT) {
					t.Fatalf("Remove(%d, %d): %v, want ok %v", start, n, err, ok)
				}
				if ok {
					gen++
					clear(model[start : start+n])
				}
			case 3:
				var fresh [window]modelPage
				var maps []Map
				var bad []error
				for range next() % 5 {
					m, want := arg(&fresh)
					maps = append(maps, m)
					if want != nil {
						bad = append(bad, want)
					}
				}
				err := s.Replace(maps)
				if (err == nil) != (len(bad) == 0) {
					t.Fatalf("Replace(%+v): %v, want %v", maps, err, bad)
				}
				if err == nil {
					gen++
					model = fresh
				}
			case 4:
				off, n := next()%window*page+next()*16+next()%16, next()
				if n&1 == 0 {
					n *= 97
				}
				access := Access(next() % 2)
				checkTranslate(t, s, &tr, c, &model, base, off, n, access)
			case 5:
				off, n := next()%window*page+next()*16, next()*33+1
				p, err := s.Pin(base+uint64(off), uint64(n))
				first, ok := off/page, off+n <= window*page
				for i := first; ok && i <= (off+n-1)/page; i++ {
					m := model[i]
					ok = m.mapped && !m.ro && !m.none && m.region == model[first].region
				}
				if ok != (err == nil) {
					t.Fatalf("Pin(%#x, %#x): %v, want ok %v", off, n, err, ok)
				}
				if ok {
					if want := tagOf(model[first].file, model[first].page*page+off%page); p.Bytes()[0] != want || len(p.Bytes()) != n {
						t.Fatalf("Pin(%#x): %#x, want %#x", off, p.Bytes()[0], want)
					}
					p.Close()
				}
			case 6:
				testkit.OK(t, s.Close())
				gen++
				clear(model[:])
			case 7:
				s.Leave(s.Enter())
			}
			if s.Generation() != gen {
				t.Fatalf("generation %d, want %d", s.Generation(), gen)
			}
		}
	})
}

func tagOf(file, off int) byte { return byte(file*101 + off/4096*17 + off*3) }

// checkTranslate compares with the model the translations of [base+off, base+off+n) by Space and Translator, and the
// bytes read there.
func checkTranslate(t *testing.T, s *Space, tr *Translator, c *Copier, model *[64]modelPage, base uint64, off, n int,
	a Access) {
	defer s.Leave(s.Enter())
	segs, err := s.Translate(nil, base+uint64(off), uint64(n), a)
	again, e := tr.TranslateMax(nil, math.MaxInt, base+uint64(off), uint64(n), a)
	if !slices.Equal(segs, again) || fmt.Sprint(err) != fmt.Sprint(e) {
		t.Fatalf("Translate(%#x, %#x, %v): %v, %v; a Translator: %v, %v", off, n, a, segs, err, again, e)
	}
	var want error
	for i := off; i < off+n && want == nil; i += page - i%page {
		switch {
		case i/page >= len(model) || !model[i/page].mapped:
			want = ErrUnmapped
		case model[i/page].none || a == Write && model[i/page].ro:
			want = ErrAccess
		}
	}
	if !errors.Is(err, want) || Len(segs) != uint64(n) && err == nil || err != nil && segs != nil {
		t.Fatalf("Translate(%#x, %#x, %v): %d bytes, %v; want %v", off, n, a, Len(segs), err, want)
	}
	if err != nil {
		return
	}
	got := make([]byte, n)
	if err := tr.ReadAt(got, base+uint64(off)); err != nil {
		t.Fatalf("ReadAt: %v", err)
	}
	byReadAt := slices.Clone(got)
	if k, err := c.Read(got, segs); k != n || err != nil {
		t.Fatalf("Read: %d of %d, %v", k, n, err)
	}
	if !bytes.Equal(got, byReadAt) {
		t.Fatalf("ReadAt of %#x bytes at %#x reads others", n, off)
	}
	for i, b := range got {
		m := model[(off+i)/page]
		if want := tagOf(m.file, m.page*page+(off+i)%page); b != want {
			t.Fatalf("byte %#x: %#x, want %#x", off+i, b, want)
		}
	}
}
