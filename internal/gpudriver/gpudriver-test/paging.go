package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/gpudriver/testnic"
)

var pagingCases = []testCase{
	{"bad calls about regions are refused", inRegion(badRegions)},
	{"a NIC is told where pages are, and reads and writes there", inRegion(answers)},
	{"what is not there, or not for that, is invalid, and nothing else", inRegion(invalids)},
	{"a page whose memory is broken is invalid, and no other", inRegion(broken)},
	{"a NIC is told of each page that it has, and of no other", isTold},
	{"a fork's pages are no NIC's", inRegion(forkTold)},
	{"a process that ends, or is killed, has its pages back first", onNIC(childTold)},
	{"a region that is closed has no pages", inRegion(closeTold)},
	{"a signal ends no call", onNIC(notInterrupted)},
	{"nothing that a NIC writes while pages move is lost", stress},
	{"a NIC that acknowledges first loses writes", loses(testnic.Sabotages)},
	{"a NIC that takes answers for newer than they are loses writes", loses(testnic.Believes)},
	{"a NIC that does not answer holds nobody up twice", withBound(200, inRegion(silent))},
	{"removal takes pages from the NIC", removal(testnic.Answers, removalTold)},
	{"a NIC that does not answer does not hold removal up", withBound(50, removal(testnic.Silent, removalSilent))},
	{"a NIC that is gone is waited for once", withBound(5, onNIC(nicGone))},
	// Meanwhile the kernel compacts memory, RAM is short, or processes end:
	{"the kernel moves pages in RAM meanwhile, and a NIC writes", compacting(stress)},
	{"RAM is short meanwhile, and a NIC writes", shortOfRAM(stress)},
	{"processes with regions are killed meanwhile", onNIC(manyKilled)},
}

const (
	parameter = "/sys/module/" + gpudriver.Module + "/parameters/ack_ms"
	ackMS     = 1000 // in ms: the default of the parameter
)

func rebind(t *T, ms int) {
	t.ok(errors.Join(os.WriteFile(parameter, []byte(strconv.Itoa(ms)), 0), bind(t.gpu, "unbind"), bind(t.gpu, "bind")))
	t.gpu = only(t)
}

func withBound(ms int, test func(t *T)) func(t *T) {
	return func(t *T) {
		rebind(t, ms)
		defer func() {
			t.gpu = only(t)
			rebind(t, ackMS)
		}()
		test(t)
	}
}

// inRegion returns a function that calls test with b, 16 pages in RAM that fill(b, 20) has filled, and their region.
func inRegion(test func(t *T, f *gpudriver.File, r *region, b []byte)) func(t *T) {
	return onNIC(func(t *T, f *gpudriver.File, n *hostNIC) {
		b := anonymous(t, 16*page, false)
		defer t.unmap(b)
		fill(b, 20)
		test(t, f, n.openRegion(f, b), b)
	})
}

func badRegions(t *T, f *gpudriver.File, r *region, b []byte) {
	pos, id := addressOf(b), uint64(r.ID())
	open := func(addr, size uint64) error { return errOf(f.OpenRegionAt(addr, size)) }
	fault := func(first, n uint64) error { _, _, err := r.Fault(first, int(n), false, false); return err }
	raw := func(args ...uint64) error { return f.Raw(0xc020e908, words(args...)) }
	file := must(gpudriver.Open(t.gpu.Path))(t)
	defer file.Close()
	other := file.Region(r.ID())
	off, ack, err := f.Mailbox()
	t.require(err == nil && off == page && ack.Milliseconds() == ackMS, "mailbox at %#x, %v: %v", off, ack, err)
	_, _, notOurs := other.Fault(0, 1, false, false)
	t.refused("a region of nothing", open(pos, 0), unix.EINVAL)
	t.refused("a region of no whole pages", open(pos, page+8), unix.EINVAL)
	t.refused("a region that begins in a page", open(pos+8, page), unix.EINVAL)
	t.refused("a region that is too long", open(1<<30, 1<<30+page), unix.EINVAL)
	t.refused("a region around the end", open(1<<64-page, 2*page), unix.EINVAL)
	t.refused("a region of the kernel's", open(1<<63, page), unix.EINVAL)
	t.refused("a region with a flag", f.Raw(0xc018e906, words(pos, page, 1<<32)), unix.EINVAL)
	t.refused("no page", fault(0, 0), unix.EINVAL)
	t.refused("too many pages", fault(0, gpudriver.MaxFault+1), unix.EINVAL)
	t.refused("a page behind the end", fault(15, 2), unix.EINVAL)
	t.refused("pages far behind the end", fault(1<<63, 1), unix.EINVAL)
	t.refused("pages around the end", fault(1<<64-1, 2), unix.EINVAL)
	t.refused("a flag that is none", raw(id|4<<32, 0, 1, pos), unix.EINVAL)
	t.refused("entries that cannot be written", raw(id, 0, 1, 8), unix.EFAULT)
	t.refused("a region that is none", raw(id+1, 0, 1, pos), unix.ENOENT)
	t.refused("another file's region", notOurs, unix.ENOENT)
	t.refused("another file's statistics", errOf(other.Stats()), unix.ENOENT)
	t.refused("another file's region is closed", other.Close(), unix.ENOENT)
	t.refused("a region is closed with a flag", f.Raw(0x4008e907, words(id|1<<32)), unix.EINVAL)
	t.refused("no bound", os.WriteFile(parameter, []byte("0"), 0), unix.EINVAL)
	t.refused("a bound that is none", os.WriteFile(parameter, []byte("10001"), 0), unix.EINVAL)
	seen := map[uint32]bool{r.ID(): true}
	for i := 1; i < 16; i++ {
		x, err := f.OpenRegion(b)
		t.require(err == nil && !seen[x.ID()], "region %d: %+v, %v", i, x, err)
		seen[x.ID()] = true
	}
	t.refused("region 17", open(pos, page), unix.EMFILE)
	t.ok(r.Close())
	x, err := f.OpenRegion(b)
	t.require(err == nil && !seen[x.ID()], "a number that was used: %+v, %v", x, err)
}

func answers(t *T, f *gpudriver.File, r *region, b []byte) {
	toGPU(t, f, b[4*page:8*page])
	pages := r.fault(2, "RRGGGGR", true, false)
	for i, p := range pages {
		x, want := r.nic.read(p, uint64(8*i)), (uint64((2+i)*page+8*i)+20)*0x9e3779b97f4a7c15
		t.require(x == want, "page %d: the NIC reads %#x, and not %#x", 2+i, x, want)
		r.nic.write(p, uint64(8*i), uint64(i))
	}
	places, err := f.Where(b)
	t.require(err == nil && places[4] == pages[2].Addr && places[7] == pages[5].Addr && places[8] == gpudriver.InRAM,
		"the places are %#x: %v", places, err)
	r.mustRelease()
	for i := range pages {
		x := b[(2+i)*page+8*i]
		t.require(int(x) == i, "page %d: the program reads %d", 2+i, x)
		fill(b[(2+i)*page+8*i:][:8], 20+uint64((2+i)*page+8*i))
	}
	err = check(b, 20)
	t.require(err == nil, "bytes that the NIC did not write: %w", err)
	r.mustRelease(released{4, 1, isMigrate}, released{5, 1, isMigrate}, released{6, 1, isMigrate},
		released{7, 1, isMigrate})

	toGPU(t, f, b[:2*page])
	r.fault(1, "G", true, false)
	r.fault(0, "RR", true, true)
	r.mustReleaseBefore(released{1, 1, isMigrate})
	s, err := r.Stats()
	t.require(err == nil && s.Faults == 3 && s.RAM == 5 && s.VRAM == 5 && s.Invalid == 0 && s.Invalidations == 5 &&
		s.Untold != 0 && s.Timeouts == 0 && !s.Quarantined && s.Mapped == 5, "%+v, %v", s, err)
	sum := uint32(0)
	for _, n := range s.Waits {
		sum += n
	}
	t.require(sum == 5, "%d waits: %v", sum, s.Waits)
	t.ok(check(b, 20))
}

func invalids(t *T, f *gpudriver.File, r *region, b []byte) {
	file := must(os.CreateTemp("", ""))(t)
	defer func() { _ = os.Remove(file.Name()) }()
	defer file.Close()
	pos := addressOf(b)
	must(mapAt(uintptr(pos+3*page), page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED,
		int(file.Fd())))(t)
	t.ok(file.Truncate(page))
	// No other thread maps memory in this hole of one page: the Go runtime maps larger pieces.
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(pos+page), page, 0); errno != 0 {
		t.ok(errno)
	}
	t.ok(unix.Mprotect(b[5*page:6*page], unix.PROT_NONE))
	t.ok(unix.Mprotect(b[7*page:8*page], unix.PROT_READ))
	t.ok(unix.Madvise(b[9*page:11*page], unix.MADV_DONTNEED))
	r.mustRelease()
	pages := r.fault(0, "R.R.R.RrRrrR", false, false)
	for i, want := range map[int]unix.Errno{1: unix.EFAULT, 3: unix.EOPNOTSUPP, 5: unix.EFAULT} {
		t.require(pages[i].Err == want, "page %d: %v, and not %v", i, pages[i].Err, want)
	}
	// Pages 9 and 10 are the same page of zeroes after DONTNEED and a read, until a write.
	x := r.nic.read(pages[9], 8)
	t.require(x == 0 && pages[9].Addr == pages[10].Addr, "what was never touched is %#x: %+v", x, pages[9:11])
	pages = r.fault(6, "R.RR", true, false)
	r.mustReleaseBefore(released{9, 1, isClear})
	r.nic.write(pages[3], 8, 77)
	t.require(b[9*page+8] == 77, "what was written first by the NIC: %d", b[9*page+8])
	t.require(b[10*page] == 0, "the other page of zeroes: %d", b[10*page])

	// The driver does not wait for a page fault that a program should serve (userfaultfd).
	t.ok(unix.Madvise(b[12*page:14*page], unix.MADV_DONTNEED))
	defer unix.Close(userFault(t, b[13*page:14*page]))
	r.fault(12, "R.R", true, false)
}

// hardOffline is a file: the write of an address makes Linux treat the page of RAM there as broken
// (Documentation/ABI/testing/sysfs-memory-page-offline).
const hardOffline = "/sys/devices/system/memory/hard_offline_page"

func broken(t *T, f *gpudriver.File, r *region, b []byte) {
	toGPU(t, f, b[8*page:12*page])
	pages := r.fault(0, "RRRRRRRRGGGG", true, false)
	t.ok(os.WriteFile(hardOffline, fmt.Appendf(nil, "%#x", pages[2].Addr), 0))
	r.mustRelease(released{2, 1, isClear})
	pages = r.fault(0, "RR.RRRRRGGGG", true, false)
	t.require(pages[2].Err == unix.EFAULT, "%+v", pages[2])
	t.ok(check(b[:2*page], 20))
	r.nic.write(pages[3], 8, 77)
}

// forkTold: a fork makes pages of both processes read-only; the NIC must not write to them.
func forkTold(t *T, f *gpudriver.File, r *region, b []byte) {
	for _, kinds := range []string{"RRRR", "GGGG"} {
		fill(b, 8)
		if kinds == "GGGG" {
			toGPU(t, f, b)
		}
		r.fault(3, kinds, true, false)
		fork(t, b, true)
		r.mustRelease(released{3, 4, isProtect})
		t.ok(check(b, 8))
	}
	toGPU(t, f, b)
	r.fault(3, "gggg", false, false)
	r.fault(3, "RRRR", true, false)
	t.ok(check(b, 8))
}

func closeTold(t *T, f *gpudriver.File, r *region, b []byte) {
	toGPU(t, f, b[:2*page])
	r.fault(1, "GR", true, false)
	t.ok(r.Close())
	r.mustRelease(released{1, 2, isClosed})
	r.mayNotFault("a page of a region that is closed", 1, unix.ENOENT)
	other := open(t)
	x := r.nic.openRegion(other, b)
	x.fault(15, "R", true, false)
	t.ok(other.Close())
	x.mustRelease(released{15, 1, isClosed})
	t.ok(check(b, 20))
}

// silent: the NIC does not answer, and frees the requests that the driver gives up. So Linux waits once for each
// region, which the driver then quarantines.
func silent(t *T, f *gpudriver.File, r *region, b []byte) {
	r.fault(0, "RRRRRRRR", true, false)
	r.nic.mode(testnic.Silent)
	t.ok(unix.Madvise(b[:page], unix.MADV_DONTNEED))
	r.isQuarantined("DONTNEED", 1)
	r.mayNotFault("a page of a region that is quarantined", 0, unix.EIO)
	t.ok(unmap(b))
	r.mustRelease()
	for _, kill := range []bool{false, true} {
		r.nic.mode(testnic.Answers)
		c := newChild(f, r.nic, 8)
		r.nic.mode(testnic.Silent)
		t.ok(c.end(kill))
		c.isQuarantined(fmt.Sprint("a process that ends, killed ", kill), 8)
	}
	r.nic.mode(testnic.Answers)
	bothWait(f, r.nic)
	c := newChild(f, r.nic, 8)
	t.ok(c.end(true))
	c.mustRelease(released{0, 8, isRelease})
}

func (r *region) isQuarantined(what string, pages uint64) {
	t := r.nic.t
	s, err := r.Stats()
	// These elements count waits of w microseconds with 2^34 <= w*w: at least 131 ms, of the bound of 200 ms.
	long := uint32(0)
	for _, n := range s.Waits[34:] {
		long += n
	}
	t.require(err == nil && s.Quarantined && s.Timeouts == 1 && s.Invalidations == 1 && s.Mapped == 0 && long == 1,
		"%s: %+v, %v", what, s, err)
	list := r.nic.log()
	t.require(len(list) == 2 && !list[0].givenUp && list[1].givenUp && list[1].region == r.ID() &&
		list[1].pages.count == pages, "%s: told %+v", what, list)
}

func bothWait(f *gpudriver.File, n *hostNIC) {
	t := n.t
	b := anonymous(t, page, false)
	defer t.unmap(b)
	b[0] = 1
	r := n.openRegion(f, b)
	r.fault(0, "R", true, false)
	n.mode(testnic.Silent)
	first := make(chan error, 1)
	go func() { first <- unix.Madvise(b, unix.MADV_DONTNEED) }()
	var all []report
	look := func() bool {
		all = append(all, n.log()...)
		return len(all) > 0
	}
	t.ok(wait("the NIC is asked", look))
	err := unix.Madvise(b, unix.MADV_DONTNEED)
	look()
	t.require(len(all) == 2 && all[1].givenUp, "the second thread has gone on: %+v", all)
	t.ok(errors.Join(err, <-first))
	n.mode(testnic.Answers)
	t.ok(r.Close())
}

// removal returns a test that removes the GPU from the driver, in a mode of the NIC, while the NIC may use pages in
// the GPU and in RAM, adds it again, and calls look.
func removal(mode uint64, look func(t *T, r *region)) func(t *T) {
	return inRegion(func(t *T, f *gpudriver.File, r *region, b []byte) {
		toGPU(t, f, b[:4*page])
		r.fault(2, "GG", true, false)
		r.fault(10, "RR", false, false)
		r.nic.mode(mode)
		t.ok(errors.Join(bind(t.gpu, "unbind"), bind(t.gpu, "bind")))
		r.mayNotFault("a page by a GPU that is gone", 2, unix.ENODEV)
		// The mapped page of commands was removed with the GPU; the NIC on the host still has its log.
		t.gpu = only(t)
		again := open(t)
		defer again.Close()
		r.nic = newHostNIC(t, again)
		defer t.unmap(r.nic.control)
		look(t, r)
		t.ok(check(b, 20))
		t.ok(unmap(b))
		r.mustRelease()
		t.ok(r.Close())
		r.mustRelease()
	})
}

func removalTold(_ *T, r *region) { r.mustRelease(released{2, 10, isRemoved}) }

// removalSilent checks only that the NIC got the request: it may miss that the driver gave the request up, because
// the mailbox is removed too.
func removalSilent(t *T, r *region) {
	list := r.nic.log()
	t.require(len(list) > 0 && list[0].region == r.ID() && list[0].pages.reason == isRemoved, "told %+v", list)
}

// nicGone: the driver waits for the first region only, if the NIC neither answers requests nor frees them.
func nicGone(t *T, f *gpudriver.File, n *hostNIC) {
	b := anonymous(t, page, false)
	defer t.unmap(b)
	b[0] = 1
	taken := func() (s gpudriver.RegionStats, lost uint64) {
		r := n.openRegion(f, b)
		r.fault(0, "R", true, false)
		t.ok(unix.Mprotect(b, unix.PROT_READ))
		t.ok(unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE))
		s = must(r.Stats())(t)
		lost = n.do(testnic.Lost).Words[0]
		t.ok(r.Close())
		return s, lost
	}
	n.mode(testnic.Dead)
	for i := range uint64(8) {
		s, lost := taken()
		t.require(s.Quarantined && s.Invalidations == 1 && lost == i, "region %d: %+v, %d are lost", i, s, lost)
	}
	n.mode(testnic.Answers)
	s, lost := taken()
	t.require(!s.Quarantined && s.Invalidations == 1 && lost == 7,
		"when the NIC is there again: %+v, %d are lost", s, lost)
}

// unmap unmaps memory and reserves its addresses. Else another thread could map memory there, which the caller
// might unmap later with the memory around b.
func unmap(b []byte) error {
	pos, size := uintptr(addressOf(b)), uintptr(len(b))
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, pos, size, 0); errno != 0 {
		return os.NewSyscallError("munmap", errno)
	}
	return errOf(mapAt(pos, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, -1))
}

func mapAt(pos, size uintptr, prot, flags, fd int) (uintptr, error) {
	p, _, errno := unix.Syscall6(unix.SYS_MMAP, pos, size, uintptr(prot), uintptr(flags), uintptr(fd), 0)
	if errno != 0 {
		return 0, os.NewSyscallError("mmap", errno)
	}
	return p, nil
}
