package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/gpudriver/testnic"
)

const stressTime = time.Minute

const requestPoll = 50 * time.Microsecond

// answerRequest answers the NIC's request for pages; if there is none, it sleeps. It may run on a goroutine other
// than the test's.
func (n *hostNIC) answerRequest(r *gpudriver.Region) error {
	if !n.control.Requested() {
		time.Sleep(requestPoll)
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
}

func countUp(t *T, mode uint64, long time.Duration) (wrong int) {
	const pages = 32
	onNIC(func(t *T, f *gpudriver.File, n *hostNIC) {
		b := anonymous(t, pages*page, false)
		defer t.unmap(b)
		r := n.openRegion(f, b)
		n.mode(mode)
		n.do(testnic.Start, uint64(r.ID()), pages)
		rounds, moved := uint32(0), uint64(0)
		var x testnic.Result
		var before gpudriver.RegionStats
		t.beside(func() error { return n.answerRequest(r.Region) }, func() {
			for start := time.Now(); time.Since(start) < long || moved == 0; rounds++ {
				moved += must(f.ToGPU(b))(t)
				switch rounds % 4 {
				case 1:
					must(f.ToRAM(b))(t)
				case 2:
					t.ok(unix.Mprotect(b, unix.PROT_READ))
					t.ok(unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE))
				}
				for i := 8; i < len(b); i += page {
					binary.LittleEndian.PutUint32(b[i:], binary.LittleEndian.Uint32(b[i:])+1)
				}
			}
			before = must(r.Stats())(t)
			x = n.do(testnic.Stop)
		})
		if n.control.Requested() {
			n.control.Respond(&testnic.Response{Failed: true})
		}
		for i := range pages {
			if binary.LittleEndian.Uint32(b[i*page:]) != uint32(x.Words[testnic.Counts+i]) {
				wrong++
			}
			c := binary.LittleEndian.Uint32(b[i*page+8:])
			t.require(c == rounds || mode != testnic.Answers, "page %d: the program has counted up to %d, and not %d", i, c,
				rounds)
		}
		s, err := r.Stats()
		fmt.Printf("     %d writes, %d requests, %d acknowledgements, %d stale answers; %d pages to the GPU; of %d pages "+
			"%d wrong; %+v\n", x.Words[testnic.Written], x.Words[testnic.Requests], x.Words[testnic.Acks],
			x.Words[testnic.Stale], moved, pages, wrong, s)
		acks := x.Words[testnic.Acks] // Linux may invalidate pages between before, x and s
		t.require(err == nil && !s.Quarantined && before.Invalidations <= acks && acks <= s.Invalidations, "%+v, %v", s, err)
		t.require(mode != testnic.Answers ||
			s.VRAM > 0 && s.RAM > 0 && x.Words[testnic.Written] > 0 && s.Invalidations > 0, "%+v", s)
		t.ok(r.Close())
		n.mode(testnic.Answers)
	})(t)
	return wrong
}

func stress(t *T) {
	wrong := countUp(t, testnic.Answers, stressTime)
	t.require(wrong == 0, "%d pages have lost writes", wrong)
}

// loses returns a negative control of stress: with a NIC in a faulty mode, a page's number must be wrong in one of
// its tries.
func loses(mode uint64) func(t *T) {
	return func(t *T) {
		t.ok(wait("a write is lost", func() bool { return countUp(t, mode, time.Second/2) > 0 }))
	}
}
