package main

import (
	"bufio"
	"bytes"
	"cmp"
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

var privateCases = []testCase{
	{"bad calls about a program's pages are refused", inMemory(piece, badMoves)},
	{"pages move to the GPU, and come back as they are touched", byTouch},
	{"pages come back as is asked for", inMemory(0, byRequest)},
	{"pages that were never touched are zeroes", inMemory(piece, untouched)},
	{"what is shared, a file's or pinned stays", inMemory(piece, stays)},
	{"a GPU that is full takes what it has room for", inMemory(piece, full)},
	{"what is unmapped or not needed is free again", unmapped},
	{"a fork has its own copy", inMemory(piece, forked)},
	{"a process that is killed leaves nothing", killed},
	{"nothing that is written while pages move is lost", written},
	{"removal brings pages back", inMemory(0, evicted)},
	{"a program that serves its own page faults does not hold removal up", inMemory(2*page, unserved)},
	{"the kernel moves pages in RAM meanwhile", compacting(touchAndWrite)},
	{"RAM is short meanwhile", shortOfRAM(someByTouch)},
	{"the driver lets go of the GPU and takes it again meanwhile", rebound},
}

var (
	moveSize  = 4 << 20
	moveTimes = 3
)

func anonymous(t *T, size int, huge bool) []byte { return must(mapAnonymous(size, huge))(t) }

func mapAnonymous(size int, huge bool) ([]byte, error) {
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

func with(t *T, size int, do func(f *gpudriver.File, b []byte)) {
	f := open(t)
	defer f.Close()
	b := anonymous(t, size, false)
	defer t.unmap(b)
	do(f, b)
}

func toGPU(t *T, f *gpudriver.File, b []byte) {
	n := must(f.ToGPU(b))(t)
	t.require(n == uint64(len(b)/page), "%d pages of %d were moved", n, len(b)/page)
}

func inGPU(t *T, f *gpudriver.File, b []byte) int {
	seen := make(map[uint64]bool)
	for _, p := range must(f.Where(b))(t) {
		if p == gpudriver.InRAM || p == gpudriver.Absent {
			continue
		}
		t.require(!seen[p] && p%page == 0, "place %#x twice, or no page", p)
		seen[p] = true
	}
	return len(seen)
}

func inMemory(size int, test func(t *T, f *gpudriver.File, b []byte)) func(t *T) {
	return func(t *T) { with(t, cmp.Or(size, moveSize), func(f *gpudriver.File, b []byte) { test(t, f, b) }) }
}

func badMoves(t *T, f *gpudriver.File, b []byte) {
	pos := addressOf(b)
	move := func(addr, size uint64, flags uint32) error { return errOf(f.Migrate(addr, size, flags)) }
	where := func(args ...uint64) error { return f.Raw(0x4018e904, words(args...)) }
	hole := anonymous(t, 2*page, false)
	gone := addressOf(hole)
	t.ok(unix.Munmap(hole))
	t.refused("no pages", move(pos, 0, 1), unix.EINVAL)
	t.refused("no whole page", move(pos, page-1, 1), unix.EINVAL)
	t.refused("not from a page on", move(pos+8, page, 1), unix.EINVAL)
	t.refused("around the end", move(1<<64-page, 2*page, 1), unix.EINVAL)
	t.refused("the kernel's", move(1<<63, page, 1), unix.EINVAL)
	t.refused("a flag that is none", move(pos, page, 2), unix.EINVAL)
	t.refused("nothing is mapped there", move(gone, page, 1), unix.EFAULT)
	t.refused("too many places", where(pos, 1<<33, pos), unix.E2BIG)
	t.refused("places that cannot be written", where(pos, page, 8), unix.EFAULT)
	t.refused("places of no page", where(pos+1, page, pos), unix.EINVAL)
}

func addressOf(b []byte) uint64 { return uint64(reflect.ValueOf(b).Pointer()) }

func words(list ...uint64) (b []byte) {
	for _, x := range list {
		b = binary.NativeEndian.AppendUint64(b, x)
	}
	return b
}

func byTouch(t *T) { moveAndTouch(t, moveTimes, false) }

// If some is true, it is no error that only some of the pages move to the GPU.
func moveAndTouch(t *T, times int, some bool) {
	for _, huge := range []bool{false, true} {
		t.step = fmt.Sprintf("huge pages %v", huge)
		func() {
			f := open(t)
			defer f.Close()
			b := anonymous(t, moveSize, huge)
			defer t.unmap(b)
			before := must(f.Info())(t)
			sum := uint64(0)
			for i := range uint64(times) {
				fill(b, i)
				moved, err := f.ToGPU(b)
				t.require(err == nil && moved > 0 && (some || moved == uint64(len(b)/page)),
					"%d pages of %d were moved: %v", moved, len(b)/page, err)
				sum += moved
				n := inGPU(t, f, b)
				t.require(uint64(n) == moved, "%d pages of %d are there", n, moved)
				err = check(b, i)
				t.require(err == nil, "time %d: %w", i, err)
				n = inGPU(t, f, b)
				t.require(n == 0, "%d pages are there still", n)
			}
			now := must(f.Info())(t)
			t.require(now.ToGPU-before.ToGPU == sum && now.Faulted-before.Faulted == sum && now.ToRAM == before.ToRAM &&
				now.Private == 0, "%d pages to the GPU and back: %+v, and before %+v", sum, now, before)
		}()
	}
	t.step = ""
}

func byRequest(t *T, f *gpudriver.File, b []byte) {
	fill(b, 7)
	toGPU(t, f, b)
	n, err := f.ToGPU(b)
	t.require(err == nil && n == 0, "moved again: %d pages, %v", n, err)
	n, err = f.ToRAM(b[:len(b)/2])
	t.require(err == nil && n == uint64(len(b)/2/page), "half of it: %d pages, %v", n, err)
	left := inGPU(t, f, b)
	t.require(left == len(b)/2/page, "%d pages are left there", left)
	t.ok(check(b, 7))
}

func untouched(t *T, f *gpudriver.File, b []byte) {
	toGPU(t, f, b)
	n := bytes.Count(b, []byte{0})
	t.require(n == len(b), "%d bytes are not 0", len(b)-n)
}

func stays(t *T, f *gpudriver.File, _ []byte) {
	file := must(os.CreateTemp("", ""))(t)
	defer func() { _ = os.Remove(file.Name()) }()
	defer file.Close()
	t.ok(file.Truncate(piece))
	for what, flags := range map[string]int{"shared": unix.MAP_SHARED, "a file's": unix.MAP_PRIVATE} {
		b := must(unix.Mmap(int(file.Fd()), 0, piece, unix.PROT_READ|unix.PROT_WRITE, flags))(t)
		fill(b, 3)
		n, err := f.ToGPU(b)
		err = errors.Join(err, check(b, 3), unix.Munmap(b))
		t.require(err == nil && n == 0, "%s: %d pages were moved: %v", what, n, err)
	}
	locked := anonymous(t, piece, false)
	defer t.unmap(locked)
	fill(locked, 4)
	t.ok(unix.Mlock(locked))
	toGPU(t, f, locked)
	t.ok(check(locked, 4))
}

func full(t *T, f *gpudriver.File, b []byte) {
	const room = 10
	must(f.Alloc(t.gpu.Size-room*page, 0))(t)
	fill(b, 5)
	n, err := f.ToGPU(b)
	t.require(err == nil && n == room, "%d pages, %v", n, err)
	t.ok(check(b, 5))
}

func unmapped(t *T) {
	f := open(t)
	defer f.Close()
	b := anonymous(t, piece, false)
	left := func(want uint64) {
		info := must(f.Info())(t)
		t.require(info.Private == want, "%d pages are left, and not %d", info.Private, want)
	}
	fill(b, 6)
	toGPU(t, f, b)
	left(piece / page)
	t.ok(unix.Madvise(b[:piece/2], unix.MADV_DONTNEED))
	left(piece / 2 / page)
	t.ok(unix.Munmap(b))
	left(0)
}

// forked: Go's runtime does not support fork; the child process of [fork] compares, writes and exits without the
// runtime.
func forked(t *T, f *gpudriver.File, b []byte) {
	for _, childFirst := range []bool{true, false} {
		fill(b, 8)
		toGPU(t, f, b)
		fork(t, b, childFirst)
		err := check(b, 8)
		t.require(err == nil, "the parent, after the child has written: %w", err)
	}
}

// fork forks a child, which checks b and writes to it, and waits for its exit. Unless childFirst is true, the parent
// checks b while the child runs.
func fork(t *T, b []byte, childFirst bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		t.ok(errno)
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
	var err error
	if !childFirst {
		err = check(b, 8)
	}
	var w unix.WaitStatus
	must(unix.Wait4(int(pid), &w, 0, nil))(t)
	t.require(w.Exited() && w.ExitStatus() == 0 && err == nil, "the child: status %#x, %v", w, err)
}

func killed(t *T) {
	c := exec.Command("/proc/self/exe", "hold", t.gpu.Path, strconv.Itoa(moveSize))
	out := must(c.StdoutPipe())(t)
	c.Stderr = os.Stderr
	t.ok(c.Start())
	defer func() { _ = c.Process.Kill() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	info := ask(t)
	err = errors.Join(err, c.Process.Kill())
	_ = c.Wait()
	t.require(err == nil, "%q: %w", line, err)
	t.require(info.Private == uint64(moveSize/page), "%d pages are there", info.Private)
	t.ok(wait("the pages are gone", func() bool { return ask(t).Private == 0 }))
}

func hold(t *T, path, size string) {
	n := must(strconv.Atoi(size))(t)
	t.gpu.Path = path
	with(t, n, func(f *gpudriver.File, b []byte) {
		fill(b, 1)
		toGPU(t, f, b)
		fmt.Println("ready")
		for {
			_ = unix.Pause()
		}
	})
}

func written(t *T) {
	const size = 256 << 10
	with(t, size, func(f *gpudriver.File, b []byte) {
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
		t.ok(err)
		for i := 0; i < size; i += page {
			n := binary.NativeEndian.Uint64(b[i:])
			t.require(n == rounds.Load(), "page %d was counted up to %d, and not %d", i/page, n, rounds.Load())
		}
		t.require(moved > 0, "no page was moved")
	})
}

func evicted(t *T, f *gpudriver.File, b []byte) {
	fill(b, 9)
	toGPU(t, f, b)
	t.ok(errors.Join(bind(t.gpu, "unbind"), check(b, 9)))
	t.refused("to a GPU that is gone", errOf(f.ToGPU(b)), unix.ENODEV)
	t.ok(bind(t.gpu, "bind"))
}

// From include/uapi/linux/userfaultfd.h.
const (
	uffdAPI      = 0xc018aa3f // UFFDIO_API: api u64, features u64, ioctls u64
	uffdRegister = 0xc020aa00 // UFFDIO_REGISTER: start u64, len u64, mode u64, ioctls u64
	uffdMissing  = 1          // UFFDIO_REGISTER_MODE_MISSING
)

func userFault(t *T, b []byte) (fd int) {
	r, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	t.require(errno == 0, "userfaultfd: %w", errno)
	for _, x := range []struct {
		request uintptr
		arg     []byte
	}{{uffdAPI, words(0xaa, 0, 0)}, {uffdRegister, words(addressOf(b), uint64(len(b)), uffdMissing, 0)}} {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, r, x.request, reflect.ValueOf(x.arg).Pointer())
		runtime.KeepAlive(x.arg)
		t.require(errno == 0, "ioctl %#x: %w", x.request, errno)
	}
	return int(r)
}

// unserved: the driver writes a call's result to memory whose page faults nobody serves; that does not delay
// removal.
func unserved(t *T, f *gpudriver.File, b []byte) {
	answer := b[page:]
	fd := userFault(t, answer)
	b[0] = 1
	asked := make(chan error, 1)
	go func() { asked <- f.Raw(0x4018e904, words(addressOf(b), page, addressOf(answer))) }()
	// When fd is readable, the thread that writes the result has a page fault, and waits.
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(patience.Milliseconds()))
	t.require(err == nil && n == 1, "no page fault: %d, %w", n, err)
	gone := make(chan error, 1)
	go func() { gone <- bind(t.gpu, "unbind") }()
	err = wait("the GPU is gone", func() bool { return len(gone) > 0 })
	select {
	case e := <-asked:
		err = errors.Join(err, fmt.Errorf("the call has ended: %v", e))
	default:
	}
	t.ok(errors.Join(err, unix.Close(fd), <-asked, <-gone, bind(t.gpu, "bind")))
}

func touchAndWrite(t *T) {
	someByTouch(t)
	written(t)
}

func someByTouch(t *T) { moveAndTouch(t, moveTimes/4+1, true) }

func rebound(t *T) {
	b := anonymous(t, piece, false)
	defer t.unmap(b)
	fill(b, 11)
	var moved atomic.Uint64
	move := func() error {
		list, err := gpudriver.List()
		if err != nil || len(list) == 0 {
			return nil
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
	}
	t.beside(move, func() {
		for range 5 * moveTimes {
			before := moved.Load()
			t.ok(wait("pages move", func() bool { return moved.Load() > before }))
			t.gpu = only(t)
			t.ok(errors.Join(bind(t.gpu, "unbind"), bind(t.gpu, "bind")))
		}
	})
	t.ok(check(b, 11))
}

func leave(t *T, size string) {
	t.gpu = only(t)
	n := must(strconv.Atoi(size))(t)
	with(t, n, func(f *gpudriver.File, b []byte) {
		fill(b, 12)
		toGPU(t, f, b)
		for _, p := range must(f.Where(b))(t) {
			fmt.Println(p)
		}
	})
}
