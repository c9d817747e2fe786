package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

// privateCases are of programs' pages in the GPU's memory.
var privateCases = []testCase{
	{"bad calls about a program's pages are refused", badMoves},
	{"pages move to the GPU, and come back as they are touched", byTouch},
	{"pages come back as is asked for", byRequest},
	{"pages that were never touched are zeroes", untouched},
	{"what is shared, a file's or pinned stays", stays},
	{"a GPU that is full takes what it has room for", full},
	{"what is unmapped or not needed is free again", unmapped},
	{"a fork has its own copy", forked},
	{"a process that is killed leaves nothing", killed},
	{"nothing that is written while pages move is lost", written},
	{"removal brings pages back", evicted},
	{"a program that serves its own page faults does not hold removal up", unserved},
	{"the kernel moves pages in RAM meanwhile", compacted},
	{"RAM is short meanwhile", pressed},
	{"the driver lets go of the GPU and takes it again meanwhile", rebound},
}

// Sizes of the test, of which a longer one has others.
var (
	moveSize  = 4 << 20
	moveTimes = 3
)

// anonymous is memory of this program's, of whole pages; of 4 KiB unless huge.
func anonymous(size int, huge bool) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	advice := unix.MADV_NOHUGEPAGE
	if huge {
		advice = unix.MADV_HUGEPAGE
	}
	return b, os.NewSyscallError("madvise", unix.Madvise(b, advice))
}

// fill writes numbers that follow from place and seed; check compares them.
func fill(b []byte, seed uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], (uint64(i)+seed)*0x9e3779b97f4a7c15)
	}
}

func check(b []byte, seed uint64) error {
	for i := 0; i < len(b); i += 8 {
		if got, want := binary.NativeEndian.Uint64(b[i:]), (uint64(i)+seed)*0x9e3779b97f4a7c15; got != want {
			return fmt.Errorf("at %#x: %#x, and not %#x", i, got, want)
		}
	}
	return nil
}

// with runs a case with the device open and memory of some size.
func with(g gpudriver.GPU, size int, do func(f *gpudriver.File, b []byte) error) error {
	f, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := anonymous(size, false)
	if err != nil {
		return err
	}
	return errors.Join(do(f, b), unix.Munmap(b))
}

// toGPU moves all of memory.
func toGPU(f *gpudriver.File, b []byte) error {
	n, err := f.ToGPU(b)
	if err == nil && n != uint64(len(b)/page) {
		err = fmt.Errorf("%d pages of %d were moved", n, len(b)/page)
	}
	return err
}

// in counts pages that are in the GPU's memory, each at a place of its own.
func in(f *gpudriver.File, b []byte) (n int, err error) {
	places, err := f.Where(b)
	if err != nil {
		return 0, err
	}
	seen := make(map[uint64]bool)
	for _, p := range places {
		if p == gpudriver.InRAM || p == gpudriver.Absent {
			continue
		}
		if seen[p] || p%page != 0 {
			return 0, fmt.Errorf("place %#x twice, or no page", p)
		}
		seen[p] = true
	}
	return len(seen), nil
}

func badMoves(g gpudriver.GPU) error {
	return with(g, piece, func(f *gpudriver.File, b []byte) error {
		addrOf := func(off uint64) uint64 { return addressOf(b) + off }
		move := func(addr, size uint64, flags uint32) error { _, err := f.Migrate(addr, size, flags); return err }
		hole, err := anonymous(2*page, false)
		if err != nil {
			return err
		}
		gone := addressOf(hole)
		if err := unix.Munmap(hole); err != nil {
			return err
		}
		var errs []error
		for _, c := range []struct {
			what string
			got  error
			want error
		}{
			{"no pages", move(addrOf(0), 0, 1), unix.EINVAL},
			{"no whole page", move(addrOf(0), page-1, 1), unix.EINVAL},
			{"not from a page on", move(addrOf(8), page, 1), unix.EINVAL},
			{"around the end", move(1<<64-page, 2*page, 1), unix.EINVAL},
			{"the kernel's", move(1<<63, page, 1), unix.EINVAL},
			{"a flag that is none", move(addrOf(0), page, 2), unix.EINVAL},
			{"nothing is mapped there", move(gone, page, 1), unix.EFAULT},
			{"too many places", f.Raw(0x4018e904, words(addrOf(0), 1<<33, addrOf(0))), unix.E2BIG},
			{"places that cannot be written", f.Raw(0x4018e904, words(addrOf(0), page, 8)), unix.EFAULT},
			{"places of no page", f.Raw(0x4018e904, words(addrOf(1), page, addrOf(0))), unix.EINVAL},
		} {
			if !errors.Is(c.got, c.want) {
				errs = append(errs, fmt.Errorf("%s: %v, and not %v", c.what, c.got, c.want))
			}
		}
		return errors.Join(errs...)
	})
}

// addressOf is where memory is.
func addressOf(b []byte) uint64 { return uint64(reflect.ValueOf(b).Pointer()) }

func words(list ...uint64) (b []byte) {
	for _, x := range list {
		b = binary.NativeEndian.AppendUint64(b, x)
	}
	return b
}

func byTouch(g gpudriver.GPU) error { return toAndFro(g, moveTimes, false) }

// toAndFro moves memory to the GPU and touches it, again and again. some: a page that the kernel has in hand cannot be
// moved.
func toAndFro(g gpudriver.GPU, times int, some bool) error {
	for _, huge := range []bool{false, true} {
		f, err := gpudriver.Open(g.Path)
		if err != nil {
			return err
		}
		b, err := anonymous(moveSize, huge)
		if err == nil {
			err = errors.Join(moveAndTouch(f, b, times, some), unix.Munmap(b))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("huge pages %v: %w", huge, err)
		}
	}
	return nil
}

func moveAndTouch(f *gpudriver.File, b []byte, times int, some bool) error {
	before, err := f.Info()
	if err != nil {
		return err
	}
	sum := uint64(0)
	for i := range uint64(times) {
		fill(b, i)
		moved, err := f.ToGPU(b)
		if err != nil || moved == 0 || !some && moved != uint64(len(b)/page) {
			return fmt.Errorf("%d pages of %d were moved: %v", moved, len(b)/page, err)
		}
		sum += moved
		if n, err := in(f, b); err != nil || uint64(n) != moved {
			return fmt.Errorf("%d pages of %d are there: %v", n, moved, err)
		}
		if err := check(b, i); err != nil {
			return fmt.Errorf("time %d: %w", i, err)
		}
		if n, err := in(f, b); err != nil || n != 0 {
			return fmt.Errorf("%d pages are there still: %v", n, err)
		}
	}
	now, err := f.Info()
	if err != nil {
		return err
	}
	if now.ToGPU-before.ToGPU != sum || now.Faulted-before.Faulted != sum || now.ToRAM != before.ToRAM ||
		now.Private != 0 {
		return fmt.Errorf("%d pages to the GPU and back: %+v, and before %+v", sum, now, before)
	}
	return nil
}

func byRequest(g gpudriver.GPU) error {
	return with(g, moveSize, func(f *gpudriver.File, b []byte) error {
		fill(b, 7)
		if err := toGPU(f, b); err != nil {
			return err
		}
		// What is there is there: it is not moved twice.
		if n, err := f.ToGPU(b); err != nil || n != 0 {
			return fmt.Errorf("moved again: %d pages, %v", n, err)
		}
		n, err := f.ToRAM(b[:len(b)/2])
		if err != nil || n != uint64(len(b)/2/page) {
			return fmt.Errorf("half of it: %d pages, %v", n, err)
		}
		if n, err := in(f, b); err != nil || n != len(b)/2/page {
			return fmt.Errorf("%d pages are left there: %v", n, err)
		}
		return check(b, 7)
	})
}

func untouched(g gpudriver.GPU) error {
	return with(g, piece, func(f *gpudriver.File, b []byte) error {
		if err := toGPU(f, b); err != nil {
			return err
		}
		if n := bytes.Count(b, []byte{0}); n != len(b) {
			return fmt.Errorf("%d bytes are not 0", len(b)-n)
		}
		return nil
	})
}

func stays(g gpudriver.GPU) error {
	return with(g, piece, func(f *gpudriver.File, _ []byte) error {
		file, err := os.CreateTemp("", "")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(file.Name()) }()
		defer file.Close()
		if err := file.Truncate(piece); err != nil {
			return err
		}
		for what, flags := range map[string]int{"shared": unix.MAP_SHARED, "a file's": unix.MAP_PRIVATE} {
			b, err := unix.Mmap(int(file.Fd()), 0, piece, unix.PROT_READ|unix.PROT_WRITE, flags)
			if err != nil {
				return err
			}
			fill(b, 3)
			n, err := f.ToGPU(b)
			if err := errors.Join(err, check(b, 3), unix.Munmap(b)); err != nil || n != 0 {
				return fmt.Errorf("%s: %d pages were moved: %v", what, n, err)
			}
		}
		locked, err := anonymous(piece, false)
		if err != nil {
			return err
		}
		fill(locked, 4)
		if err := unix.Mlock(locked); err != nil {
			return err
		}
		// Locked into memory says nothing of which memory.
		return errors.Join(toGPU(f, locked), check(locked, 4), unix.Munmap(locked))
	})
}

func full(g gpudriver.GPU) error {
	return with(g, piece, func(f *gpudriver.File, b []byte) error {
		const room = 10
		if _, err := f.Alloc(g.Size-room*page, 0); err != nil {
			return err
		}
		fill(b, 5)
		n, err := f.ToGPU(b)
		if err != nil || n != room {
			return fmt.Errorf("%d pages, %v", n, err)
		}
		return check(b, 5)
	})
}

func unmapped(g gpudriver.GPU) error {
	f, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := anonymous(piece, false)
	if err != nil {
		return err
	}
	left := func(want uint64) error {
		info, err := f.Info()
		if err == nil && info.Private != want {
			err = fmt.Errorf("%d pages are left, and not %d", info.Private, want)
		}
		return err
	}
	fill(b, 6)
	return errors.Join(toGPU(f, b), left(piece/page), unix.Madvise(b[:piece/2], unix.MADV_DONTNEED), left(piece/2/page),
		unix.Munmap(b), left(0))
}

// forked: Go's runtime does not fork, so the child does nothing that would need it: it compares, writes and exits.
func forked(g gpudriver.GPU) error {
	return with(g, piece, func(f *gpudriver.File, b []byte) error {
		for _, childFirst := range []bool{true, false} {
			fill(b, 8)
			if err := toGPU(f, b); err != nil {
				return err
			}
			status, err := fork(b, childFirst)
			if err != nil || status != 0 {
				return fmt.Errorf("the child: status %d, %v", status, err)
			}
			if err := check(b, 8); err != nil {
				return fmt.Errorf("the parent, after the child has written: %w", err)
			}
		}
		return nil
	})
}

// fork has a child compare memory by fill's rule with seed 8, and write over it. The parent touches it meanwhile unless
// the child is first.
func fork(b []byte, childFirst bool) (status int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	if pid == 0 {
		status := uintptr(0)
		for i := 0; i < len(b); i += 8 {
			x := uint64(b[i]) | uint64(b[i+1])<<8 | uint64(b[i+2])<<16 | uint64(b[i+3])<<24 | uint64(b[i+4])<<32 |
				uint64(b[i+5])<<40 | uint64(b[i+6])<<48 | uint64(b[i+7])<<56
			if x != (uint64(i)+8)*0x9e3779b97f4a7c15 {
				status = 1
			}
			b[i] = 0xee
		}
		for {
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, status, 0, 0)
		}
	}
	if !childFirst {
		err = check(b, 8)
	}
	var w unix.WaitStatus
	if _, werr := unix.Wait4(int(pid), &w, 0, nil); werr != nil {
		return 0, werr
	}
	if w.Signaled() {
		return 128 + int(w.Signal()), err
	}
	return w.ExitStatus(), err
}

// killed: this program again, as hold, which is killed with all its pages in the GPU.
func killed(g gpudriver.GPU) error {
	c := exec.Command("/proc/self/exe", "hold", g.Path, strconv.Itoa(moveSize))
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	info, ierr := ask(g)
	if ierr == nil && info.Private != uint64(moveSize/page) {
		ierr = fmt.Errorf("%d pages are there", info.Private)
	}
	kerr := c.Process.Kill()
	_ = c.Wait() // killed
	if err := errors.Join(err, ierr, kerr); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	return wait("the pages are gone", func() (bool, error) {
		info, err := ask(g)
		return info.Private == 0, err
	})
}

// hold moves memory to a GPU and waits to be killed.
func hold(path, size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	return with(gpudriver.GPU{Path: path}, n, func(f *gpudriver.File, b []byte) error {
		fill(b, 1)
		if err := toGPU(f, b); err != nil {
			return err
		}
		fmt.Println("ready")
		for {
			_ = unix.Pause() // until a signal, of which the one that is waited for does not return
		}
	})
}

// written: one thread counts up numbers of all pages while another moves them to and fro.
func written(g gpudriver.GPU) error {
	const size = 256 << 10
	return with(g, size, func(f *gpudriver.File, b []byte) error {
		var rounds, stop atomic.Uint64
		var work sync.WaitGroup
		work.Go(func() {
			for stop.Load() == 0 || rounds.Load() < 20 {
				for i := 0; i < size; i += page {
					n := binary.NativeEndian.Uint64(b[i:])
					binary.NativeEndian.PutUint64(b[i:], n+1)
				}
				rounds.Add(1)
			}
		})
		var err error
		var moved uint64
		for i := 0; i < 20*moveTimes && err == nil; i++ {
			var n uint64
			if n, err = f.ToGPU(b); err == nil && i%2 == 0 {
				_, err = f.ToRAM(b)
			}
			moved += n
		}
		stop.Store(1)
		work.Wait()
		for i := 0; i < size && err == nil; i += page {
			if n := binary.NativeEndian.Uint64(b[i:]); n != rounds.Load() {
				err = fmt.Errorf("page %d was counted up to %d, and not %d", i/page, n, rounds.Load())
			}
		}
		if err == nil && moved == 0 {
			err = errors.New("no page was moved")
		}
		return err
	})
}

// evicted: what is in the GPU when it is removed is in RAM then.
func evicted(g gpudriver.GPU) error {
	return with(g, moveSize, func(f *gpudriver.File, b []byte) error {
		fill(b, 9)
		if err := errors.Join(toGPU(f, b), bind(g, "unbind"), check(b, 9)); err != nil {
			return err
		}
		if _, err := f.ToGPU(b); !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("to a GPU that is gone: %v", err)
		}
		return bind(g, "bind")
	})
}

// Of include/uapi/linux/userfaultfd.h.
const (
	uffdAPI      = 0xc018aa3f // UFFDIO_API: api u64, features u64, ioctls u64
	uffdRegister = 0xc020aa00 // UFFDIO_REGISTER: start u64, len u64, mode u64, ioctls u64
	uffdMissing  = 1          // UFFDIO_REGISTER_MODE_MISSING
)

// unserved: an answer is to be written where nobody serves the page fault, until the GPU is gone.
func unserved(g gpudriver.GPU) error {
	return with(g, 2*page, func(f *gpudriver.File, b []byte) error {
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
		if errno != 0 {
			return fmt.Errorf("userfaultfd: %w", errno)
		}
		if err := ioctl(fd, uffdAPI, words(0xaa, 0, 0)); err != nil {
			return err
		}
		answer := b[page:]
		if err := ioctl(fd, uffdRegister, words(addressOf(answer), page, uffdMissing, 0)); err != nil {
			return err
		}
		b[0] = 1
		asked := make(chan error, 1)
		go func() { asked <- f.Raw(0x4018e904, words(addressOf(b), page, addressOf(answer))) }()
		// A message of the fault can be read, whose thread waits from then on.
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, int(patience.Milliseconds())); err != nil || n != 1 {
			return fmt.Errorf("no page fault: %d, %w", n, err)
		}
		gone := make(chan error, 1)
		go func() { gone <- bind(g, "unbind") }()
		err := wait("the GPU is gone", func() (bool, error) { return len(gone) > 0, nil })
		select {
		case e := <-asked:
			err = errors.Join(err, fmt.Errorf("the call has ended: %v", e))
		default:
		}
		// Then the fault is an ordinary one.
		return errors.Join(err, unix.Close(int(fd)), <-asked, <-gone, bind(g, "bind"))
	})
}

func ioctl(fd, request uintptr, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, reflect.ValueOf(arg).Pointer())
	runtime.KeepAlive(arg)
	if errno != 0 {
		return fmt.Errorf("ioctl %#x: %w", request, errno)
	}
	return nil
}

// beside does something again and again until stop is called, which gives its error.
func beside(again func() error) (stop func() error) {
	var end atomic.Bool
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil && !end.Load() {
			err = again()
		}
		done <- err
	}()
	return func() error {
		end.Store(true)
		return <-done
	}
}

// compacted: compaction moves pages of all programs (mm/compaction.c).
func compacted(g gpudriver.GPU) error {
	stop := beside(func() error { return os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0) })
	return errors.Join(toAndFro(g, moveTimes/4+1, true), written(g), stop())
}

// pressed: another part of the program takes most of the RAM, again and again.
func pressed(g gpudriver.GPU) error {
	available, err := meminfo("MemAvailable:")
	if err != nil {
		return err
	}
	stop := beside(func() error { return take(int(available - available/8 - uint64(2*moveSize))) })
	return errors.Join(toAndFro(g, moveTimes/4+1, true), stop())
}

// meminfo reads a line of /proc/meminfo, in bytes.
func meminfo(key string) (uint64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		var kib uint64
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			_, err := fmt.Sscan(string(rest), &kib)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", key)
}

// rebound: pages move all the time, to a GPU that is there or is not.
func rebound(gpudriver.GPU) error {
	b, err := anonymous(piece, false)
	if err != nil {
		return err
	}
	fill(b, 11)
	var moved atomic.Uint64
	stop := beside(func() error {
		list, err := gpudriver.List()
		if err != nil || len(list) == 0 {
			return nil // it is about to go
		}
		f, err := gpudriver.Open(list[0].Path)
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		n, err := f.ToGPU(b)
		moved.Add(n)
		if errors.Is(err, unix.ENODEV) {
			err = nil
		}
		return errors.Join(err, check(b, 11), f.Close())
	})
	for i := 0; i < 5*moveTimes && err == nil; i++ {
		before := moved.Load()
		err = wait("pages move", func() (bool, error) { return moved.Load() > before, nil })
		g, gerr := only()
		if err = errors.Join(err, gerr); err == nil {
			err = errors.Join(bind(g, "unbind"), bind(g, "bind"))
		}
	}
	return errors.Join(err, stop(), check(b, 11), unix.Munmap(b))
}

// leave moves memory to the GPU, says where each page is, and ends: it is there until somebody has the place.
func leave(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	g, err := only()
	if err != nil {
		return err
	}
	return with(g, n, func(f *gpudriver.File, b []byte) error {
		fill(b, 12)
		if err := toGPU(f, b); err != nil {
			return err
		}
		places, err := f.Where(b)
		for _, p := range places {
			fmt.Println(p)
		}
		return err
	})
}
