package dma

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"vnic.dev/vnic/internal/testkit"
)

// pending calls f on a new goroutine, and fails the test if f does not block. The result is closed when f returns.
func pending(t *testing.T, what string, f func() error) <-chan struct{} {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}()
	synctest.Wait()
	select {
	case <-done:
		t.Fatalf("%s did not wait", what)
	default:
	}
	return done
}

func isDone(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Invariant: dma: Removing a region waits only until the workers inside the space have left, and
// delays no worker.
func TestRemoveWaitsForThoseInsideAndNobodyWaitsForIt(t *testing.T) {
	leakFree(t)
	fd := memfd(t, 4*page)
	for _, c := range []struct {
		name   string
		change func(*Space) error
	}{
		{"Remove", func(s *Space) error { return s.Remove(0, page) }},
		{"Replace", func(s *Space) error { return s.Replace([]Map{{IOVA: 8 * page, Size: page, FD: fd}}) }},
		{"Close", func(s *Space) error { return s.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				files := NewFiles()
				s, other := NewSpace("a", files), NewSpace("b", files)
				defer s.Close()
				defer other.Close()
				add(t, s, Map{Size: page, FD: fd})
				add(t, other, Map{Size: page, FD: fd})
				elsewhere := other.Enter()
				inside := s.Enter()
				segs := testkit.Must(s.Translate(nil, 0, page, Write))(t)
				done := pending(t, c.name, func() error { return c.change(s) })

				late := s.Enter() // the waiting change does not block Enter, nor does it wait for this worker
				testkit.ErrorIs(t, testkit.Err(s.Translate(nil, 0, 1, Read)), ErrUnmapped, "after the change")
				add(t, s, Map{IOVA: page, Size: page, FD: fd}) // the waiting change does not block Add either
				testkit.NoError(t, testkit.Err(s.Translate(nil, page, 1, Read)))
				testkit.NoError(t, testkit.Err(NewCopier().Write(segs, []byte("still mapped"))))
				if isDone(done) {
					t.Fatal("did not wait for the one inside")
				}
				s.Leave(inside)
				if !isDone(done) {
					t.Fatal("waits for one who entered later, or for one in another space")
				}
				s.Leave(late)
				done = pending(t, "Remove in the other space", func() error { return other.Remove(0, page) })
				other.Leave(elsewhere)
				if !isDone(done) {
					t.Fatal("the other space sleeps")
				}
			})
		})
	}
}

func TestManyRemovesWaitAtOnce(t *testing.T) {
	leakFree(t)
	fd := memfd(t, page)
	synctest.Test(t, func(t *testing.T) {
		s := NewSpace("a", NewFiles())
		defer s.Close()
		var done []<-chan struct{}
		tokens := make([]int, 0, 8)
		for i := range uint64(8) {
			add(t, s, Map{IOVA: i * page, Size: page, FD: fd})
		}
		for i := range uint64(8) {
			tokens = append(tokens, s.Enter())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				testkit.NoError(t, s.Remove(i*page, page))
			}()
			done = append(done, gone)
		}
		for i, token := range tokens { // each Remove waits for the workers that entered before it
			for _, gone := range done[i:] {
				if isDone(gone) {
					t.Fatalf("a Remove did not wait for worker %d", i)
				}
			}
			s.Leave(token)
		}
		for i := range done {
			if !isDone(done[i]) {
				t.Fatalf("Remove %d sleeps", i)
			}
		}
	})
}

func TestLeaveWithoutEnterPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	NewSpace("a", NewFiles()).Leave(0)
}

// Invariant: dma: Removing a region waits only until the workers inside the space have left, and
// delays no worker.
func TestWorkersReadWhatTheyTranslated(t *testing.T) {
	leakFree(t)
	const regions, rounds = 8, 400
	files := NewFiles()
	spaces := []*Space{NewSpace("a", files), NewSpace("b", files)}
	maps := make([][]Map, len(spaces))
	for k := range spaces {
		for i := range uint64(regions) {
			fd := memfd(t, page) // one file for each region, so that Remove unmaps the file
			f := testkit.Must(files.Open(fd, page))(t)
			r, _ := f.Region(0, page)
			var b [page]byte
			for o := 0; o < page; o += 8 {
				binary.LittleEndian.PutUint64(b[o:], uint64(k)<<32|i)
			}
			testkit.OK(t, testkit.Err(NewCopier().Write([]Segment{r.Segment(0, page)}, b[:])))
			f.Close()
			maps[k] = append(maps[k], Map{IOVA: i * page, Size: page, FD: fd})
			add(t, spaces[k], maps[k][i])
		}
	}
	var stop atomic.Bool
	var workers, control sync.WaitGroup
	for w := range uint64(3) {
		workers.Add(1)
		Go(func() {
			defer workers.Done()
			c := NewCopier()
			buf := make([]byte, 64)
			segs := make([]Segment, 0, 4)
			for i := w; !stop.Load(); i++ {
				var tokens [2]int
				for k, s := range spaces {
					tokens[k] = s.Enter()
				}
				for k, s := range spaces {
					iova := i % regions * page
					got, err := s.Translate(segs, iova+i%512*8%(page-64), 64, Read)
					if err != nil {
						if !errors.Is(err, ErrUnmapped) {
							t.Error(err)
						}
						continue
					}
					testkit.NoError(t, testkit.Err(c.Read(buf, got)))
					if v := binary.LittleEndian.Uint64(buf); v != uint64(k)<<32|i%regions {
						t.Errorf("space %d at %#x: %#x", k, iova, v)
					}
				}
				for k, s := range spaces {
					s.Leave(tokens[k])
				}
				runtime.Gosched() // let a woken control goroutine run
			}
		})
	}
	for k, s := range spaces {
		control.Go(func() {
			for i := range rounds {
				m := maps[k][i%regions]
				testkit.NoError(t, s.Remove(m.IOVA, m.Size))
				if i%5 == 0 {
					testkit.NoError(t, s.Replace(maps[k][i%regions:]))
					testkit.NoError(t, s.Replace(maps[k]))
					continue
				}
				testkit.NoError(t, s.Add(m))
			}
		})
	}
	control.Wait()
	stop.Store(true)
	workers.Wait()
	for _, s := range spaces {
		s.Close()
	}
	if files.Len() != 0 {
		t.Fatalf("%d files are mapped", files.Len())
	}
}
