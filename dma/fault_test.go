package dma

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

func on(f func()) {
	done := make(chan struct{})
	Go(func() {
		defer close(done)
		f()
	})
	<-done
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// twoGuests returns two spaces of 1 MiB, and the descriptors of their memory.
func twoGuests(t *testing.T) (victim, healthy *Space, fd, healthyFD int) {
	files := NewFiles()
	victim, healthy = NewSpace("victim", files), NewSpace("healthy", files)
	fd, healthyFD = memfd(t, 1<<20), memfd(t, 1<<20)
	add(t, victim, Map{Size: 1 << 20, FD: fd})
	add(t, healthy, Map{Size: 1 << 20, FD: healthyFD})
	t.Cleanup(func() { victim.Close(); healthy.Close() })
	return
}

// copyAll copies 1 MiB, from address 0 of its second Space to address 0 of its first.
func copyAll(c *Copier, to, from *Space) error {
	defer to.Leave(to.Enter())
	defer from.Leave(from.Enter())
	dst, err := to.Translate(nil, 0, 1<<20, Write)
	if err != nil {
		return err
	}
	src, err := from.Translate(nil, 0, 1<<20, Read)
	if err != nil {
		return err
	}
	_, err = c.Copy(dst, src)
	return err
}

// Invariant: dma: Truncating a file is an error for the spaces that map it, and for no other space.
func TestFileTruncatedUnderACopy(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(c *Copier, victim, healthy *Space) error
	}{
		{"as source", func(c *Copier, victim, healthy *Space) error { return copyAll(c, healthy, victim) }},
		{"as destination", func(c *Copier, victim, healthy *Space) error { return copyAll(c, victim, healthy) }},
		{"summed", func(c *Copier, victim, healthy *Space) error {
			defer victim.Leave(victim.Enter())
			defer healthy.Leave(healthy.Enter())
			dst, _ := healthy.Translate(nil, 0, 1<<20, Write)
			src, _ := victim.Translate(nil, 0, 1<<20, Read)
			if _, err := c.Sum(src); err != nil {
				return err
			}
			_, _, err := c.CopySum(dst, src)
			return err
		}},
		{"in place", func(c *Copier, victim, healthy *Space) error {
			defer victim.Leave(victim.Enter())
			src, _ := victim.Translate(nil, 0, 1<<20, Write)
			return c.View(src[0], 64<<10, func(b []byte) error { clear(b); return nil })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			leakFree(t)
			victim, healthy, fd, _ := twoGuests(t)
			victimFile := victim.Regions()[0].File
			started, result := make(chan struct{}), make(chan error)
			copier := NewCopier()
			Go(func() { // the healthy guest's worker
				for i := 0; ; i++ {
					if err := c.run(copier, victim, healthy); err != nil {
						result <- err
						return
					}
					if i == 0 {
						close(started)
					}
				}
			})
			<-started
			truncate(t, fd, 4096)
			err := <-result
			var fe *FaultError
			if !errors.As(err, &fe) || !errors.Is(err, ErrFault) {
				t.Fatalf("error %v", err)
			}
			if fe.File != victimFile || fe.Off < 4096 || fe.Off >= 1<<20 || !victimFile.Dead() {
				t.Errorf("blamed %v at %#x", fe.File, fe.Off)
			}
			if !closed(victim.Faulted()) || !errors.Is(victim.FaultErr(), fe) {
				t.Errorf("the victim was not told: %v", victim.FaultErr())
			}
			if closed(healthy.Faulted()) || healthy.FaultErr() != nil {
				t.Error("the healthy guest is blamed")
			}
			// The copier refuses the dead file, though its first 4096 bytes still exist.
			testkit.ErrorIs(t, c.run(copier, victim, healthy), fe, "again")
			testkit.ErrorIs(t, victim.Add(Map{IOVA: 1 << 30, Size: page, FD: fd}), ErrFault, "Add of a dead file")
			testkit.ErrorIs(t, testkit.Err(victim.Pin(0, page)), ErrFault, "Pin of a dead file")
			on(func() { testkit.NoError(t, copyAll(copier, healthy, healthy)) })
			// The guest comes back, and its file has the full length again.
			testkit.OK(t, victim.Close())
			if closed(victim.Faulted()) || victim.FaultErr() != nil {
				t.Error("an empty space is at fault")
			}
			truncate(t, fd, 1<<20)
			add(t, victim, Map{Size: 1 << 20, FD: fd})
			on(func() { testkit.NoError(t, copyAll(copier, victim, healthy)) })
		})
	}
}

// Invariant: dma: Truncating a file is an error for the spaces that map it, and for no other space.
func TestFaultIsToldToEverySpaceThatHasTheFile(t *testing.T) {
	leakFree(t)
	victim, healthy, fd, healthyFD := twoGuests(t)
	files := victim.files
	sharer := NewSpace("sharer", files)
	defer sharer.Close()
	add(t, sharer, Map{IOVA: 0, Size: page, FD: fd, FileOffset: page})
	add(t, sharer, Map{IOVA: page, Size: page, FD: fd})
	add(t, sharer, Map{IOVA: 2 * page, Size: page, FD: healthyFD})
	left := NewSpace("left", files)
	add(t, left, Map{Size: page, FD: fd})
	left.Close()
	truncate(t, fd, 0)
	on(func() {
		if err := copyAll(NewCopier(), healthy, victim); !errors.Is(err, ErrFault) {
			t.Error(err)
		}
	})
	for s, want := range map[*Space]bool{victim: true, sharer: true, healthy: false, left: false} {
		if closed(s.Faulted()) != want || (s.FaultErr() != nil) != want {
			t.Errorf("%s: %v", s.Name(), s.FaultErr())
		}
	}
	// The fault is reported until the space maps no region of the file.
	if err := sharer.Remove(0, page); err != nil || !closed(sharer.Faulted()) {
		t.Errorf("forgiven with the file still there: %v", err)
	}
	if err := sharer.Remove(page, page); err != nil || closed(sharer.Faulted()) || sharer.FaultErr() != nil {
		t.Errorf("not forgiven: %v, %v", err, sharer.FaultErr())
	}
}

// Enter guards goroutines that Go did not start.
func TestEnterGuardsAnyGoroutine(t *testing.T) {
	leakFree(t)
	victim, healthy, fd, _ := twoGuests(t)
	truncate(t, fd, 0)
	result := make(chan error)
	go func() { result <- copyAll(NewCopier(), healthy, victim) }()
	if err := <-result; !errors.Is(err, ErrFault) {
		t.Fatal(err)
	}
}

func TestRingAccessFaults(t *testing.T) {
	leakFree(t)
	victim, _, fd, _ := twoGuests(t)
	p, err := victim.Pin(8*page, page)
	testkit.OK(t, err)
	defer p.Close()
	ring := p.Bytes()
	load := func() (b byte, err error) {
		defer Recover(&err)
		return ring[100], nil
	}
	on(func() {
		testkit.NoError(t, testkit.Err(load()))
		truncate(t, fd, 0)
		var fe *FaultError
		if _, err := load(); !errors.As(err, &fe) || fe.File != p.File() || fe.Off != 8*page+100 {
			t.Errorf("load: %v", err)
		}
	})
	if !closed(victim.Faulted()) {
		t.Error("the owner was not told")
	}
}

// Invariant: dma: Only faults of mapped memory become errors; other panics continue.
func TestOtherPanicsGoOn(t *testing.T) {
	leakFree(t)
	_, healthy, _, _ := twoGuests(t)
	foreign, err := unix.Mmap(-1, 0, page, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	testkit.OK(t, err)
	defer unix.Munmap(foreign)
	var none *Counts
	for _, c := range []struct {
		name string
		f    func()
		want func(v any) bool
	}{
		{"fault at a foreign address", func() { foreign[8]++ }, func(v any) bool {
			a, ok := FaultAddr(v)
			return ok && a == reflect.ValueOf(foreign).Pointer()+8
		}},
		{"nil", func() { none.Bytes(0, 0, 0) }, func(v any) bool { _, ok := v.(runtime.Error); return ok }},
		{"index", func() { foreign = foreign[:len(os.Args)*1e6] }, func(v any) bool {
			_, ok := v.(runtime.Error)
			_, fault := FaultAddr(v)
			return ok && !fault
		}},
		{"own panic", func() { panic("mine") }, func(v any) bool { _, fault := FaultAddr(v); return v == "mine" && !fault }},
	} {
		t.Run(c.name, func(t *testing.T) {
			on(func() {
				defer healthy.Leave(healthy.Enter())
				segs, err := healthy.Translate(nil, 0, page, Read)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() {
					if v := recover(); !c.want(v) {
						t.Errorf("panic %v", v)
					}
				}()
				err = NewCopier().View(segs[0], page, func([]byte) error { c.f(); return nil })
				t.Errorf("View returned %v", err)
			})
			if closed(healthy.Faulted()) {
				t.Error("a space is blamed")
			}
			testkit.NoError(t, copyAll(NewCopier(), healthy, healthy))
		})
	}
}

// overlapEnv is an environment variable; if it is set, the test binary runs faultInOverlap in place of the tests.
const overlapEnv = "DMA_TEST_FAULT_IN_OVERLAP"

// faultInOverlap makes an overlapping copy fault, and checks that clear() still works. It prints "sound" if so.
func faultInOverlap() {
	must := func(err error) {
		if err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
	}
	fd, err := unix.MemfdCreate("overlap", unix.MFD_CLOEXEC)
	must(err)
	must(unix.Ftruncate(fd, 1<<20))
	s := NewSpace("guest", NewFiles())
	must(s.Add(Map{Size: 1 << 20, FD: fd}))
	defer s.Leave(s.Enter())
	dst, _ := s.Translate(nil, 64, 32<<10, Write)
	src, _ := s.Translate(nil, 0, 32<<10, Read)
	must(unix.Ftruncate(fd, 0))
	if _, err := NewCopier().Copy(dst, src); !errors.Is(err, ErrFault) {
		must(fmt.Errorf("no fault, but %v", err))
	}
	b := make([]byte, 64<<10)
	for range 10 {
		for i := range b {
			b[i] = 0xff
		}
		clear(b)
		if slices.Max(b) != 0 {
			must(errors.New("clear does not"))
		}
	}
	os.Stdout.WriteString("sound")
}

func TestFaultInOverlappingCopyLeavesTheRuntimeSound(t *testing.T) {
	exe, err := os.Executable()
	testkit.OK(t, err)
	for _, dbg := range []string{"", "cpu.avx=off,cpu.avx2=off,cpu.erms=off"} {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), overlapEnv+"=1", "GODEBUG="+dbg)
		out, err := cmd.Output()
		if err != nil || !strings.HasSuffix(string(out), "sound") {
			t.Errorf("GODEBUG=%q: %s, %v", dbg, out, err)
		}
	}
}

func TestGoGuards(t *testing.T) {
	on(func() {
		if !debug.SetPanicOnFault(true) {
			t.Error("a goroutine started by Go ends the process on a fault")
		}
	})
}

func TestFileThatDiesWhileItIsAdded(t *testing.T) {
	leakFree(t)
	files := NewFiles()
	s := NewSpace("late", files)
	r, err := s.open(Map{Size: page, FD: memfd(t, page)}, false)
	testkit.OK(t, err)
	first := r.File().markDead(8)
	if again := r.File().markDead(16); again != first {
		t.Errorf("the second fault is %v", again)
	}
	s.mu.Lock()
	err = s.attach(r)
	s.set(newTable([]*Region{r}), 1)
	s.mu.Unlock()
	if err != nil || !closed(s.Faulted()) || !errors.Is(s.FaultErr(), first) || r.FileOffset() != 0 {
		t.Errorf("not told: %v, %v", err, s.FaultErr())
	}
	s.Close()
}
