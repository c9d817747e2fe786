package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/gpudriver/testnic"
)

// stressTime is how long pages move at least while the NIC writes to them.
const stressTime = time.Minute

// look is how often the agent looks whether the NIC asks for pages.
const look = 50 * time.Microsecond

// agent answers what the NIC asks, by the driver, until stop is called, which gives its error.
func (n *hostNIC) agent(r *gpudriver.Region) (stop func() error) {
	return beside(func() error {
		if !n.control.Requested() {
			time.Sleep(look)
			return nil
		}
		q := n.control.GetRequest()
		var x testnic.Response
		var pages [testnic.MaxRequest]gpudriver.Page
		gen, err := r.FaultInto(pages[:], q.First, int(q.N), true, false)
		if err != nil || q.Region != r.ID() {
			x.Failed = true
			err = fmt.Errorf("%+v, region %d: %w", q, r.ID(), err)
		}
		x.Generation = gen
		for i, p := range pages[:q.N] {
			if p.Writable {
				x.Places[i] = p.Addr | uint64(p.Kind)
			}
		}
		n.control.Respond(&x)
		return err
	})
}

// countUp has the NIC count up a number in each page, and the program another one, while pages move to the GPU and
// back, and tells of how many pages the numbers are wrong.
func countUp(g gpudriver.GPU, mode uint64, long time.Duration) (wrong int, err error) {
	const pages = 32
	err = withNIC(g, func(f *gpudriver.File, n *hostNIC) error {
		b, err := anonymous(pages*page, false)
		if err != nil {
			return err
		}
		r, err := n.openRegion(f, b)
		if err == nil {
			err = n.mode(mode)
		}
		if err == nil {
			_, err = n.do(testnic.Start, uint64(r.ID()), pages)
		}
		if err != nil {
			return errors.Join(err, unix.Munmap(b))
		}
		stop := n.agent(r.Region)
		rounds, moved := uint32(0), uint64(0)
		for start := time.Now(); err == nil && (time.Since(start) < long || moved == 0); rounds++ {
			var k uint64
			k, err = f.ToGPU(b)
			moved += k
			switch rounds % 4 {
			case 1:
				_, err = f.ToRAM(b)
			case 2:
				err = errors.Join(err, unix.Mprotect(b, unix.PROT_READ), unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE))
			}
			for i := 8; i < len(b); i += page {
				binary.LittleEndian.PutUint32(b[i:], binary.LittleEndian.Uint32(b[i:])+1)
			}
		}
		x, serr := n.do(testnic.Stop)
		if err := errors.Join(err, serr, stop()); err != nil {
			return err
		}
		if n.control.Requested() { // just before
			n.control.Respond(&testnic.Response{Failed: true})
		}
		for i := range pages {
			if binary.LittleEndian.Uint32(b[i*page:]) != uint32(x.Words[testnic.Counts+i]) {
				wrong++
			}
			if c := binary.LittleEndian.Uint32(b[i*page+8:]); c != rounds && mode == testnic.Answers {
				return fmt.Errorf("page %d: the program has counted up to %d, and not %d", i, c, rounds)
			}
		}
		s, err := r.Stats()
		fmt.Printf("     %d writes, %d requests, %d acknowledgements, %d stale answers; %d pages to the GPU; of %d pages "+
			"%d wrong; %+v\n", x.Words[testnic.Written], x.Words[testnic.Requests], x.Words[testnic.Acks],
			x.Words[testnic.Stale], moved, pages, wrong, s)
		if err != nil || s.Quarantined || x.Words[testnic.Acks] != s.Invalidations || mode == testnic.Answers &&
			(s.VRAM == 0 || s.RAM == 0 || x.Words[testnic.Written] == 0 || s.Invalidations == 0) {
			return fmt.Errorf("%+v, %v", s, err)
		}
		return errors.Join(r.Close(), n.mode(testnic.Answers), unix.Munmap(b))
	})
	return wrong, err
}

func stress(g gpudriver.GPU) error {
	wrong, err := countUp(g, testnic.Answers, stressTime)
	if err == nil && wrong != 0 {
		err = fmt.Errorf("%d pages have lost writes", wrong)
	}
	return err
}

// sabotage and believing are the negative controls of stress.
func sabotage(g gpudriver.GPU) error { return loses(g, testnic.Sabotages) }

func believing(g gpudriver.GPU) error { return loses(g, testnic.Believes) }

func loses(g gpudriver.GPU, mode uint64) error {
	return wait("a write is lost", func() (bool, error) {
		wrong, err := countUp(g, mode, time.Second/2)
		return wrong > 0, err
	})
}

func stressCompacted(g gpudriver.GPU) error {
	stop := beside(func() error { return os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0) })
	return errors.Join(stress(g), stop())
}

func stressPressed(g gpudriver.GPU) error {
	available, err := meminfo("MemAvailable:")
	if err != nil {
		return err
	}
	stop := beside(func() error { return take(int(available - available/8 - uint64(2*moveSize))) })
	return errors.Join(stress(g), stop())
}

// take takes RAM, and gives it back.
func take(size int) error {
	b, err := anonymous(size&^(page-1), false)
	if err != nil {
		return err
	}
	for i := 0; i < len(b); i += page {
		b[i] = 1
	}
	return unix.Munmap(b)
}
