package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/gpudriver/testnic"
)

// pagingCases are of pages that a NIC has on demand, which is a goroutine on the host.
var pagingCases = []testCase{
	{"bad calls about regions are refused", badRegions},
	{"a NIC is told where pages are, and reads and writes there", answers},
	{"what is not there, or not for that, is invalid, and nothing else", invalids},
	{"a page whose memory is broken is invalid, and no other", broken},
	{"a NIC is told of each page that it has, and of no other", isTold},
	{"a fork's pages are no NIC's", forkTold},
	{"a process that ends, or is killed, has its pages back first", childTold},
	{"a region that is closed has no pages", closeTold},
	{"a signal ends no call", notInterrupted},
	{"nothing that a NIC writes while pages move is lost", stress},
	{"a NIC that acknowledges first loses writes", sabotage},
	{"a NIC that takes answers for newer than they are loses writes", believing},
	{"a NIC that does not answer holds nobody up twice", silent},
	{"removal takes pages from the NIC", removalTold},
	{"a NIC that does not answer does not hold removal up", removalSilent},
	{"a NIC that is gone is waited for once", nicGone},
	// and beside what makes Linux move pages itself
	{"the kernel moves pages in RAM meanwhile, and a NIC writes", stressCompacted},
	{"RAM is short meanwhile, and a NIC writes", stressPressed},
	{"processes with regions are killed meanwhile", manyKilled},
}

const (
	parameter = "/sys/module/" + gpudriver.Module + "/parameters/ack_ms"
	ackMS     = 1000 // ms, which is what it is
)

// rebind has the driver let go of the GPU and take it again, with another bound in milliseconds.
func rebind(g gpudriver.GPU, ms int) (gpudriver.GPU, error) {
	err := errors.Join(os.WriteFile(parameter, []byte(strconv.Itoa(ms)), 0), bind(g, "unbind"), bind(g, "bind"))
	if err != nil {
		return g, err
	}
	return only()
}

// withRegion runs a case with a region of 16 pages, which are all in RAM and written.
func withRegion(g gpudriver.GPU, do func(f *gpudriver.File, r *region, b []byte) error) error {
	return withNIC(g, func(f *gpudriver.File, n *hostNIC) error {
		b, err := anonymous(16*page, false)
		if err != nil {
			return err
		}
		fill(b, 20)
		r, err := n.openRegion(f, b)
		if err == nil {
			err = do(f, r, b)
		}
		return errors.Join(err, unix.Munmap(b))
	})
}

func badRegions(g gpudriver.GPU) error {
	return withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		pos := addressOf(b)
		open := func(addr, size uint64) error { _, err := f.OpenRegionAt(addr, size); return err }
		fault := func(first, n uint64) error { _, _, err := r.Fault(first, int(n), false, false); return err }
		other, err := gpudriver.Open(g.Path)
		if err != nil {
			return err
		}
		defer other.Close()
		off, ack, err := f.Mailbox()
		if err != nil || off != page || ack.Milliseconds() != ackMS {
			return fmt.Errorf("mailbox at %#x, %v: %v", off, ack, err)
		}
		_, _, notOurs := other.Region(r.ID()).Fault(0, 1, false, false)
		_, notOurStats := other.Region(r.ID()).Stats()
		var errs []error
		for _, c := range []struct {
			what string
			got  error
			want error
		}{
			{"a region of nothing", open(pos, 0), unix.EINVAL},
			{"a region of no whole pages", open(pos, page+8), unix.EINVAL},
			{"a region that begins in a page", open(pos+8, page), unix.EINVAL},
			{"a region that is too long", open(1<<30, 1<<30+page), unix.EINVAL},
			{"a region around the end", open(1<<64-page, 2*page), unix.EINVAL},
			{"a region of the kernel's", open(1<<63, page), unix.EINVAL},
			{"a region with a flag", f.Raw(0xc018e906, words(pos, page, 1<<32)), unix.EINVAL},
			{"no page", fault(0, 0), unix.EINVAL},
			{"too many pages", fault(0, gpudriver.MaxFault+1), unix.EINVAL},
			{"a page behind the end", fault(15, 2), unix.EINVAL},
			{"pages far behind the end", fault(1<<63, 1), unix.EINVAL},
			{"pages around the end", fault(1<<64-1, 2), unix.EINVAL},
			{"a flag that is none", f.Raw(0xc020e908, words(uint64(r.ID())|4<<32, 0, 1, pos)), unix.EINVAL},
			{"entries that cannot be written", f.Raw(0xc020e908, words(uint64(r.ID()), 0, 1, 8)), unix.EFAULT},
			{"a region that is none", f.Raw(0xc020e908, words(uint64(r.ID())+1, 0, 1, pos)), unix.ENOENT},
			{"another file's region", notOurs, unix.ENOENT},
			{"another file's statistics", notOurStats, unix.ENOENT},
			{"another file's region is closed", other.Region(r.ID()).Close(), unix.ENOENT},
			{"a region is closed with a flag", f.Raw(0x4008e907, words(uint64(r.ID())|1<<32)), unix.EINVAL},
			{"no bound", os.WriteFile(parameter, []byte("0"), 0), unix.EINVAL},
			{"a bound that is none", os.WriteFile(parameter, []byte("10001"), 0), unix.EINVAL},
		} {
			if !errors.Is(c.got, c.want) {
				errs = append(errs, fmt.Errorf("%s: %v, and not %v", c.what, c.got, c.want))
			}
		}
		seen := map[uint32]bool{r.ID(): true}
		for i := 1; i < 16; i++ {
			x, err := f.OpenRegion(b)
			if err != nil || seen[x.ID()] {
				return fmt.Errorf("region %d: %+v, %v", i, x, err)
			}
			seen[x.ID()] = true
		}
		if err := open(pos, page); !errors.Is(err, unix.EMFILE) {
			errs = append(errs, fmt.Errorf("region 17: %v", err))
		}
		// A number is not used again soon.
		if err := r.Close(); err != nil {
			return err
		}
		x, err := f.OpenRegion(b)
		if err != nil || seen[x.ID()] {
			errs = append(errs, fmt.Errorf("a number that was used: %+v, %v", x, err))
		}
		return errors.Join(errs...)
	})
}

// answers: pages in RAM and in the GPU, of which the NIC reads what the program has written, and the other way round.
func answers(g gpudriver.GPU) error {
	return withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		if err := toGPU(f, b[4*page:8*page]); err != nil {
			return err
		}
		pages, err := r.fault(2, "RRGGGGR", true, false)
		if err != nil {
			return err
		}
		for i, p := range pages {
			pos := uint64((2+i)*page + 8*i)
			x, err := r.nic.read(p, uint64(8*i))
			if want := (pos + 20) * 0x9e3779b97f4a7c15; err != nil || x != want {
				return fmt.Errorf("page %d: the NIC reads %#x, and not %#x: %w", 2+i, x, want, err)
			}
			if err := r.nic.write(p, uint64(8*i), uint64(i)); err != nil {
				return err
			}
		}
		places, err := f.Where(b)
		if err != nil || places[4] != pages[2].Addr || places[7] != pages[5].Addr || places[8] != gpudriver.InRAM {
			return fmt.Errorf("the places are %#x: %v", places, err)
		}
		if err := r.wasTold(); err != nil {
			return err
		}
		for i := range pages { // the CPU touches them
			if x := b[(2+i)*page+8*i]; int(x) != i {
				return fmt.Errorf("page %d: the program reads %d", 2+i, x)
			}
			fill(b[(2+i)*page+8*i:][:8], 20+uint64((2+i)*page+8*i))
		}
		if err := check(b, 20); err != nil {
			return fmt.Errorf("what the NIC has not written: %w", err)
		}
		err = r.wasTold([3]uint64{4, 1, isMigrate}, [3]uint64{5, 1, isMigrate}, [3]uint64{6, 1, isMigrate},
			[3]uint64{7, 1, isMigrate})
		if err != nil {
			return err
		}

		// Without private pages: what is in the GPU comes back, and a NIC that has it is told.
		if err := toGPU(f, b[:2*page]); err != nil {
			return err
		}
		if _, err := r.fault(1, "G", true, false); err != nil {
			return err
		}
		if _, err := r.fault(0, "RR", true, true); err != nil {
			return err
		}
		if err := r.toldBefore([3]uint64{1, 1, isMigrate}); err != nil {
			return err
		}
		s, err := r.Stats()
		if err != nil || s.Faults != 3 || s.RAM != 5 || s.VRAM != 5 || s.Invalid != 0 || s.Invalidations != 5 ||
			s.Untold == 0 || s.Timeouts != 0 || s.Quarantined || s.Mapped != 5 {
			return fmt.Errorf("%+v, %v", s, err)
		}
		sum := uint32(0)
		for _, n := range s.Waits {
			sum += n
		}
		if sum != 5 {
			return fmt.Errorf("%d waits: %v", sum, s.Waits)
		}
		return check(b, 20)
	})
}

// toldBefore checks that the NIC was asked before the last answer, which so has the same generation or a greater one.
func (r *region) toldBefore(want [3]uint64) error {
	list, err := r.nic.log()
	if err == nil && (len(list) != 1 || [3]uint64{list[0].first, list[0].pages, uint64(list[0].reason)} != want ||
		int32(r.gen-list[0].generation) < 0) {
		err = fmt.Errorf("told %+v before an answer of generation %d, and not %v", list, r.gen, want)
	}
	return err
}

// invalids: of one range, some pages are not there, or not for what is asked.
func invalids(g gpudriver.GPU) error {
	return withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		file, err := os.CreateTemp("", "")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(file.Name()) }()
		defer file.Close()
		pos := addressOf(b)
		_, err = mapAt(uintptr(pos+3*page), page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED,
			int(file.Fd()))
		if err := errors.Join(err, file.Truncate(page)); err != nil {
			return err
		}
		// The one page is nobody's meanwhile: the Go runtime takes more at a time.
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(pos+page), page, 0); errno != 0 {
			return errno
		}
		err = errors.Join(unix.Mprotect(b[5*page:6*page], unix.PROT_NONE),
			unix.Mprotect(b[7*page:8*page], unix.PROT_READ), unix.Madvise(b[9*page:11*page], unix.MADV_DONTNEED))
		if err != nil {
			return err
		}
		if err := r.wasTold(); err != nil {
			return err
		}
		pages, err := r.fault(0, "R.R.R.RrRrrR", false, false)
		if err != nil {
			return err
		}
		for i, want := range map[int]unix.Errno{1: unix.EFAULT, 3: unix.EOPNOTSUPP, 5: unix.EFAULT} {
			if pages[i].Err != want {
				return fmt.Errorf("page %d: %v, and not %v", i, pages[i].Err, want)
			}
		}
		// Pages that were never touched are one page of zeroes, until somebody writes.
		if x, err := r.nic.read(pages[9], 8); err != nil || x != 0 || pages[9].Addr != pages[10].Addr {
			return fmt.Errorf("what was never touched is %#x: %+v, %v", x, pages[9:11], err)
		}
		if pages, err = r.fault(6, "R.RR", true, false); err != nil {
			return err
		}
		if err := r.toldBefore([3]uint64{9, 1, isClear}); err != nil {
			return err
		}
		if err := r.nic.write(pages[3], 8, 77); err != nil || b[9*page+8] != 77 {
			return fmt.Errorf("what was written first by the NIC: %d, %v", b[9*page+8], err)
		}
		if b[10*page] != 0 {
			return fmt.Errorf("the other page of zeroes: %d", b[10*page])
		}

		// A program that would serve the page fault is not waited for.
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
		if errno != 0 {
			return fmt.Errorf("userfaultfd: %w", errno)
		}
		defer unix.Close(int(fd))
		err = errors.Join(unix.Madvise(b[12*page:14*page], unix.MADV_DONTNEED), ioctl(fd, uffdAPI, words(0xaa, 0, 0)),
			ioctl(fd, uffdRegister, words(pos+13*page, page, uffdMissing, 0)))
		if err != nil {
			return err
		}
		_, err = r.fault(12, "R.R", true, false)
		return err
	})
}

// hardOffline has Linux take the page of RAM at an address for broken
// (Documentation/ABI/testing/sysfs-memory-page-offline): programs that have it find out when they touch it.
const hardOffline = "/sys/devices/system/memory/hard_offline_page"

// broken: Linux takes a page's memory for broken. The NIC lets go of it, and of no other, and does not get it again.
func broken(g gpudriver.GPU) error {
	return withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		if err := toGPU(f, b[8*page:12*page]); err != nil {
			return err
		}
		pages, err := r.fault(0, "RRRRRRRRGGGG", true, false)
		if err != nil {
			return err
		}
		if err := os.WriteFile(hardOffline, fmt.Appendf(nil, "%#x", pages[2].Addr), 0); err != nil {
			return err
		}
		if err := r.wasTold([3]uint64{2, 1, isClear}); err != nil {
			return err
		}
		if pages, err = r.fault(0, "RR.RRRRRGGGG", true, false); err != nil {
			return err
		}
		if pages[2].Err != unix.EFAULT {
			return fmt.Errorf("%+v", pages[2])
		}
		return errors.Join(check(b[:2*page], 20), r.nic.write(pages[3], 8, 77))
	})
}

// isTold: what Linux does to pages is told where the NIC has one of them, in one request, and nowhere else.
func isTold(g gpudriver.GPU) error {
	type do func(f *gpudriver.File, b []byte) error
	move := func(f *gpudriver.File, b []byte) error { _, err := f.ToGPU(b); return err }
	back := func(f *gpudriver.File, b []byte) error { _, err := f.ToRAM(b); return err }
	drop := func(_ *gpudriver.File, b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }
	protect := func(_ *gpudriver.File, b []byte) error { return unix.Mprotect(b, unix.PROT_READ) }
	touch := func(_ *gpudriver.File, b []byte) error { b[4*page] = 1; return nil }
	gone := func(_ *gpudriver.File, b []byte) error { return unmap(b) }
	for _, c := range []struct {
		what   string
		do     do
		gpu    bool   // the pages that the NIC has are in the GPU
		reason uint64 // of pages [3, 6), which the NIC has; none: it is told nothing
	}{
		{"touched in the GPU", touch, true, none},
		{"touched in RAM", touch, false, none},
		{"moved to the GPU", move, false, isMigrate},
		{"moved to RAM", back, true, isMigrate},
		{"DONTNEED in RAM", drop, false, isClear},
		{"DONTNEED in the GPU", drop, true, isClear},
		{"mprotect", protect, false, isProtectVMA},
		{"mprotect in the GPU", protect, true, isProtectVMA},
		{"munmap", gone, false, isUnmap},
		{"munmap in the GPU", gone, true, isUnmap},
	} {
		for _, has := range []bool{true, false} {
			err := withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
				kinds := "RRR"
				if c.gpu {
					kinds = "GGG"
					if err := toGPU(f, b[2*page:7*page]); err != nil {
						return err
					}
				}
				if has {
					if _, err := r.fault(3, kinds, true, false); err != nil {
						return err
					}
				}
				before, err := r.Stats()
				if err != nil {
					return err
				}
				if err := c.do(f, b); err != nil {
					return err
				}
				var want [][3]uint64
				switch {
				case has && c.reason != none:
					want = [][3]uint64{{3, 3, c.reason}}
				case has && c.gpu: // one page
					want = [][3]uint64{{4, 1, isMigrate}}
				}
				if err := r.wasTold(want...); err != nil {
					return err
				}
				now, err := r.Stats()
				if err != nil || now.Invalidations-before.Invalidations != uint64(len(want)) {
					return fmt.Errorf("%+v, %v", now, err)
				}
				// There was something to tell, of which the NIC had nothing.
				if !has && c.reason != none && now.Untold == before.Untold {
					return fmt.Errorf("nothing was said by Linux: %+v", now)
				}
				// What it has let go of is not told again.
				if err := errors.Join(unmap(b[4*page:5*page]), r.wasTold(rest(has, c.reason, c.gpu)...)); err != nil {
					return err
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s, the NIC has pages %v: %w", c.what, has, err)
			}
		}
	}
	return nil
}

const none = 1 << 32 // no reason

// rest is what is told of page 4 when it is unmapped, too: it is the NIC's still if nothing has happened to it.
func rest(has bool, reason uint64, gpu bool) [][3]uint64 {
	if has && reason == none && !gpu {
		return [][3]uint64{{4, 1, isUnmap}}
	}
	return nil
}

// forkTold: a fork makes pages of both be read-only, which the NIC may write no more: it would write to the child's.
func forkTold(g gpudriver.GPU) error {
	return withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		for _, gpu := range []bool{false, true} {
			fill(b, 8)
			kinds := "RRRR"
			if gpu {
				kinds = "GGGG"
				if err := toGPU(f, b); err != nil {
					return err
				}
			}
			if _, err := r.fault(3, kinds, true, false); err != nil {
				return err
			}
			status, err := fork(b, true)
			if err != nil || status != 0 {
				return fmt.Errorf("the child: status %d, %v", status, err)
			}
			if err := errors.Join(r.wasTold([3]uint64{3, 4, isProtect}), check(b, 8)); err != nil {
				return err
			}
		}
		// Linux knows of no page that it was another's, until somebody writes. What is in the GPU comes back for that.
		if err := toGPU(f, b); err != nil {
			return err
		}
		if _, err := r.fault(3, "gggg", false, false); err != nil {
			return err
		}
		if _, err := r.fault(3, "RRRR", true, false); err != nil {
			return err
		}
		return check(b, 8)
	})
}

// child is this program again, with a region of its memory that this one's file has.
type child struct {
	*exec.Cmd
	stdin io.Closer
	*region
}

// newChild has as many pages, half of them in the GPU, of which the NIC has all.
func newChild(f *gpudriver.File, n *hostNIC, pages int) (*child, error) {
	c := exec.Command("/proc/self/exe", "region", strconv.Itoa(pages))
	fd, err := unix.FcntlInt(uintptr(f.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dup := os.NewFile(uintptr(fd), "gpu")
	defer dup.Close()
	c.ExtraFiles, c.Stderr = []*os.File{dup}, os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	id, perr := strconv.ParseUint(strings.TrimSpace(line), 10, 32)
	x := &child{c, in, &region{f.Region(uint32(id)), n, 0}}
	if err = errors.Join(err, perr); err == nil {
		_, err = x.fault(0, strings.Repeat("G", pages/2)+strings.Repeat("R", pages-pages/2), true, false)
	}
	if err != nil {
		return nil, errors.Join(err, x.end(true))
	}
	return x, nil
}

// end has it be killed, or end by itself, and waits for that.
func (c *child) end(kill bool) error {
	if kill {
		_ = c.Process.Kill()
		_ = c.Wait() // killed
		return nil
	}
	return errors.Join(c.stdin.Close(), c.Wait())
}

// regionOf is the child: it opens a region by the file that it has inherited, and waits until its input ends.
func regionOf(pages string) error {
	n, err := strconv.Atoi(pages)
	if err != nil {
		return err
	}
	f := gpudriver.FromFD(3)
	b, err := anonymous(n*page, false)
	if err != nil {
		return err
	}
	fill(b, 21)
	r, err := f.OpenRegion(b)
	if err != nil {
		return err
	}
	if err := toGPU(f, b[:n/2*page]); err != nil {
		return err
	}
	fmt.Println(r.ID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// childTold: the program that asks for pages is another than that whose memory it is, and outlives it.
func childTold(g gpudriver.GPU) error {
	return withNIC(g, func(f *gpudriver.File, n *hostNIC) error {
		for _, kill := range []bool{false, true} {
			c, err := newChild(f, n, 8)
			if err != nil {
				return err
			}
			if err := c.wasTold(); err != nil {
				return err
			}
			if err := c.end(kill); err != nil {
				return err
			}
			if err := c.wasTold([3]uint64{0, 8, isRelease}); err != nil {
				return err
			}
			if _, _, err := c.Fault(0, 1, true, false); !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("memory of a process that is gone: %v", err)
			}
			if err := errors.Join(c.Close(), c.wasTold()); err != nil {
				return err
			}
		}
		return nil
	})
}

// closeTold: of a region, and of a file with regions.
func closeTold(g gpudriver.GPU) error {
	return withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		if err := toGPU(f, b[:2*page]); err != nil {
			return err
		}
		if _, err := r.fault(1, "GR", true, false); err != nil {
			return err
		}
		if err := errors.Join(r.Close(), r.wasTold([3]uint64{1, 2, isClosed})); err != nil {
			return err
		}
		if _, _, err := r.Fault(1, 1, true, false); !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("a page of a region that is closed: %v", err)
		}
		other, err := gpudriver.Open(g.Path)
		if err != nil {
			return err
		}
		x, err := r.nic.openRegion(other, b)
		if err != nil {
			return err
		}
		if _, err := x.fault(15, "R", true, false); err != nil {
			return err
		}
		return errors.Join(other.Close(), x.wasTold([3]uint64{15, 1, isClosed}), check(b, 20))
	})
}

// silent: the NIC does not answer. Whoever has the memory waits once.
func silent(g gpudriver.GPU) error {
	const ms = 200
	g, err := rebind(g, ms)
	if err != nil {
		return err
	}
	err = withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		if _, err := r.fault(0, "RRRRRRRR", true, false); err != nil {
			return err
		}
		if err := r.nic.mode(testnic.Silent); err != nil {
			return err
		}
		if err := unix.Madvise(b[:page], unix.MADV_DONTNEED); err != nil {
			return err
		}
		quarantined := func(what string, r *region, invalidations, bits uint64) error {
			s, err := r.Stats()
			// 2^34 <= w*w: 131 ms at least, where 200 were to be waited for.
			long := uint32(0)
			for _, n := range s.Waits[34:] {
				long += n
			}
			if err != nil || !s.Quarantined || s.Timeouts != 1 || s.Invalidations != invalidations || s.Mapped != 0 ||
				long != 1 {
				return fmt.Errorf("%s: %+v, %v", what, s, err)
			}
			list, err := r.nic.log()
			// As it was asked, and as that was given up.
			if err != nil || len(list) != 2 || list[0].givenUp || !list[1].givenUp || list[1].region != r.ID() ||
				list[1].pages != bits {
				return fmt.Errorf("%s: told %+v, %v", what, list, err)
			}
			return nil
		}
		if err := quarantined("DONTNEED", r, 1, 1); err != nil {
			return err
		}
		if _, _, err := r.Fault(0, 1, true, false); !errors.Is(err, unix.EIO) {
			return fmt.Errorf("a page of a region that is quarantined: %v", err)
		}
		// All others are taken without a word.
		if err := errors.Join(unmap(b), r.wasTold()); err != nil {
			return err
		}
		for _, kill := range []bool{false, true} {
			if err := r.nic.mode(testnic.Answers); err != nil {
				return err
			}
			c, err := newChild(f, r.nic, 8)
			if err != nil {
				return err
			}
			if err := errors.Join(r.nic.mode(testnic.Silent), c.end(kill)); err != nil {
				return err
			}
			if err := quarantined(fmt.Sprint("a process that ends, killed ", kill), c.region, 1, 8); err != nil {
				return err
			}
		}
		if err := r.nic.mode(testnic.Answers); err != nil {
			return err
		}
		if err := bothWait(f, r.nic); err != nil {
			return err
		}
		// Others are as they were.
		c, err := newChild(f, r.nic, 8)
		if err != nil {
			return err
		}
		return errors.Join(c.end(true), c.wasTold([3]uint64{0, 8, isRelease}))
	})
	if err != nil {
		return err
	}
	_, err = rebind(g, ackMS)
	return err
}

// bothWait: two threads drop the same page, which a NIC has that does not answer. The second one, too, does not go on
// before the NIC is given up.
func bothWait(f *gpudriver.File, n *hostNIC) error {
	b, err := anonymous(page, false)
	if err != nil {
		return err
	}
	b[0] = 1
	r, err := n.openRegion(f, b)
	if err == nil {
		_, err = r.fault(0, "R", true, false)
	}
	if err := errors.Join(err, n.mode(testnic.Silent)); err != nil {
		return err
	}
	first := make(chan error, 1)
	go func() { first <- unix.Madvise(b, unix.MADV_DONTNEED) }()
	var all []report
	look := func() (bool, error) {
		list, err := n.log()
		all = append(all, list...)
		return len(all) > 0, err
	}
	err = wait("the NIC is asked", look)
	err = errors.Join(err, unix.Madvise(b, unix.MADV_DONTNEED))
	if _, lerr := look(); lerr != nil || len(all) != 2 || !all[1].givenUp {
		err = errors.Join(err, fmt.Errorf("the second thread has gone on: %+v, %v", all, lerr))
	}
	return errors.Join(err, <-first, n.mode(testnic.Answers), r.Close(), unix.Munmap(b))
}

// removalTold: the NIC has pages in the GPU and in RAM as the GPU is removed.
func removalTold(g gpudriver.GPU) error {
	return removal(g, func(r *region, b []byte) error {
		return errors.Join(r.wasTold([3]uint64{2, 10, isRemoved}), check(b, 20))
	}, testnic.Answers)
}

// removalSilent: the same, and the NIC does not answer.
func removalSilent(g gpudriver.GPU) error {
	g, err := rebind(g, 50)
	if err != nil {
		return err
	}
	err = removal(g, func(r *region, b []byte) error {
		// That the slot is given up the host sees or not: the mailbox goes with it.
		list, err := r.nic.log()
		if err != nil || len(list) == 0 || list[0].region != r.ID() || list[0].reason != isRemoved {
			return fmt.Errorf("told %+v, %v", list, err)
		}
		return check(b, 20)
	}, testnic.Silent)
	if err != nil {
		return err
	}
	if g, err = only(); err == nil {
		_, err = rebind(g, ackMS)
	}
	return err
}

// removal removes a GPU, and has a look at what was told when it is there again.
func removal(g gpudriver.GPU, look func(r *region, b []byte) error, mode uint64) error {
	return withRegion(g, func(f *gpudriver.File, r *region, b []byte) error {
		if err := toGPU(f, b[:4*page]); err != nil {
			return err
		}
		_, err := r.fault(2, "GG", true, false)
		if err == nil {
			_, err = r.fault(10, "RR", false, false)
		}
		if err := errors.Join(err, r.nic.mode(mode), bind(g, "unbind"), bind(g, "bind")); err != nil {
			return err
		}
		if _, _, err := r.Fault(2, 1, true, false); !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("a page by a GPU that is gone: %v", err)
		}
		if g, err = only(); err != nil {
			return err
		}
		// The page of commands went with the GPU. What the NIC has been told it knows still.
		again, err := gpudriver.Open(g.Path)
		if err != nil {
			return err
		}
		defer again.Close()
		if off, err := again.Alloc(page, 0); err != nil || off != 0 {
			return fmt.Errorf("the page of commands is at %#x: %w", off, err)
		}
		mem, err := again.Mmap(0, page)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(mem) }()
		r.nic = &hostNIC{again, mem}
		if err := look(r, b); err != nil {
			return err
		}
		// Of what becomes of the memory now nobody is told; closing is no error.
		return errors.Join(unmap(b), r.wasTold(), r.Close(), r.wasTold())
	})
}

// nicGone: a NIC that answers nothing and frees nothing is waited for once. Of the regions behind that the host can be
// told nothing, but that there was one. When it has freed what was given up, it is told of all as before.
func nicGone(g gpudriver.GPU) error {
	g, err := rebind(g, 5)
	if err != nil {
		return err
	}
	err = withNIC(g, func(f *gpudriver.File, n *hostNIC) error {
		b, err := anonymous(page, false)
		if err != nil {
			return err
		}
		b[0] = 1
		// taken has the NIC have the page of another region, and Linux take it.
		taken := func() (s gpudriver.RegionStats, lost uint64, err error) {
			r, err := n.openRegion(f, b)
			if err != nil {
				return s, 0, err
			}
			_, err = r.fault(0, "R", true, false)
			err = errors.Join(err, unix.Mprotect(b, unix.PROT_READ), unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE))
			s, serr := r.Stats()
			x, nerr := n.do(testnic.Lost)
			return s, x.Words[0], errors.Join(err, serr, nerr, r.Close())
		}
		if err := n.mode(testnic.Dead); err != nil {
			return err
		}
		for i := range uint64(8) {
			s, lost, err := taken()
			if err != nil || !s.Quarantined || s.Invalidations != 1 || lost != i {
				return fmt.Errorf("region %d: %+v, %d are lost: %w", i, s, lost, err)
			}
		}
		if err := n.mode(testnic.Answers); err != nil {
			return err
		}
		if s, lost, err := taken(); err != nil || s.Quarantined || s.Invalidations != 1 || lost != 7 {
			return fmt.Errorf("when the NIC is there again: %+v, %d are lost: %w", s, lost, err)
		}
		return unix.Munmap(b)
	})
	_, rerr := rebind(g, ackMS)
	return errors.Join(err, rerr)
}

// manyKilled kills processes, one after the other, while the NIC writes to another one's pages.
func manyKilled(g gpudriver.GPU) error {
	return withNIC(g, func(f *gpudriver.File, n *hostNIC) error {
		for i := range 20 {
			c, err := newChild(f, n, 64)
			if err != nil {
				return err
			}
			if err := errors.Join(c.end(i%2 == 0), c.wasTold([3]uint64{0, 64, isRelease}), c.Close()); err != nil {
				return fmt.Errorf("process %d: %w", i, err)
			}
		}
		return nil
	})
}

// unmap takes memory away. The place is kept from others, who would lose what they have there as the rest is unmapped.
func unmap(b []byte) error {
	pos, size := uintptr(addressOf(b)), uintptr(len(b))
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, pos, size, 0); errno != 0 {
		return os.NewSyscallError("munmap", errno)
	}
	_, err := mapAt(pos, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, -1)
	return err
}

func mapAt(pos, size uintptr, prot, flags, fd int) (uintptr, error) {
	p, _, errno := unix.Syscall6(unix.SYS_MMAP, pos, size, uintptr(prot), uintptr(flags), uintptr(fd), 0)
	if errno != 0 {
		return 0, os.NewSyscallError("mmap", errno)
	}
	return p, nil
}
