package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

// change is an action on the pages of a region.
type change struct {
	what   string
	do     func(f *gpudriver.File, b []byte) error
	gpu    bool   // pages [2, 7) are in the GPU before it
	reason uint64 // why the NIC must release pages [3, 6); none: it keeps them, except page 4 if that is in the GPU
}

const none = 1 << 32

var (
	toVRAM = func(f *gpudriver.File, b []byte) error { return errOf(f.ToGPU(b)) }
	toRAM  = func(f *gpudriver.File, b []byte) error { return errOf(f.ToRAM(b)) }
	drop   = func(_ *gpudriver.File, b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }
	freeze = func(_ *gpudriver.File, b []byte) error { return unix.Mprotect(b, unix.PROT_READ) }
	write4 = func(_ *gpudriver.File, b []byte) error { b[4*page] = 1; return nil }
	gone   = func(_ *gpudriver.File, b []byte) error { return unmap(b) }
)

var changes = []change{
	{"touched in the GPU", write4, true, none},
	{"touched in RAM", write4, false, none},
	{"moved to the GPU", toVRAM, false, isMigrate},
	{"moved to RAM", toRAM, true, isMigrate},
	{"DONTNEED in RAM", drop, false, isClear},
	{"DONTNEED in the GPU", drop, true, isClear},
	{"mprotect", freeze, false, isProtectVMA},
	{"mprotect in the GPU", freeze, true, isProtectVMA},
	{"munmap", gone, false, isUnmap},
	{"munmap in the GPU", gone, true, isUnmap},
}

func isTold(t *T) {
	for _, c := range changes {
		for _, has := range []bool{true, false} {
			t.step = fmt.Sprintf("%s, the NIC has pages %v", c.what, has)
			inRegion(func(t *T, f *gpudriver.File, r *region, b []byte) { c.run(t, f, r, b, has) })(t)
		}
	}
	t.step = ""
}

func (c *change) run(t *T, f *gpudriver.File, r *region, b []byte, has bool) {
	kinds := "RRR"
	if c.gpu {
		kinds = "GGG"
		toGPU(t, f, b[2*page:7*page])
	}
	if has {
		r.fault(3, kinds, true, false)
	}
	before := must(r.Stats())(t)
	t.ok(c.do(f, b))
	var want, rest []released
	switch {
	case has && c.reason != none:
		want = []released{{3, 3, c.reason}}
	case has && c.gpu:
		want = []released{{4, 1, isMigrate}}
	case has:
		rest = []released{{4, 1, isUnmap}}
	}
	r.mustRelease(want...)
	now, err := r.Stats()
	t.require(err == nil && now.Invalidations-before.Invalidations == uint64(len(want)), "%+v, %v", now, err)
	// Linux reports these changes to the driver even if the NIC has none of the pages.
	t.require(has || c.reason == none || now.Untold > before.Untold, "nothing was said by Linux: %+v", now)
	t.ok(unmap(b[4*page : 5*page]))
	r.mustRelease(rest...)
}
