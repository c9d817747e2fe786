package main

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/gpudriver/testnic"
)

type hostNIC struct {
	t       *T
	control testnic.Control
}

func onNIC(test func(t *T, f *gpudriver.File, n *hostNIC)) func(t *T) {
	return func(t *T) {
		f := open(t)
		defer f.Close()
		n := newHostNIC(t, f)
		defer t.unmap(n.control)
		pos, _, err := f.Mailbox()
		t.ok(err)
		n.do(testnic.Attach, pos)
		n.mode(testnic.Answers)
		n.log()
		test(t, f, n)
	}
}

func newHostNIC(t *T, f *gpudriver.File) *hostNIC {
	off, err := f.Alloc(page, 0)
	t.require(err == nil && off == 0, "the page of commands is at %#x: %w", off, err)
	return &hostNIC{t, must(f.Mmap(off, page))(t)}
}

func (n *hostNIC) do(op uint32, args ...uint64) (r testnic.Result) {
	n.control.Command(op, args...)
	err := wait("the NIC on the host has done it", func() bool { return !n.control.Commanded() })
	n.t.require(err == nil, "command %d %#x: %w", op, args, err)
	r = n.control.GetResult()
	n.t.require(!r.Failed, "command %d %#x: the NIC on the host says why not", op, args)
	return r
}

func (n *hostNIC) mode(m uint64) { n.do(testnic.SetMode, m) }

type report struct {
	region     uint32
	pages      released
	generation uint32
	givenUp    bool
}

type released struct{ first, count, reason uint64 }

// Reasons why the driver requests a release: events of Linux (enum mmu_notifier_event), and the driver's own.
const (
	isUnmap      = 0
	isClear      = 1
	isProtectVMA = 2
	isProtect    = 3
	isRelease    = 5
	isMigrate    = 6
	isRemoved    = 0x100
	isClosed     = 0x101
)

func (n *hostNIC) log() (list []report) {
	r := n.do(testnic.Log)
	for i := range min(r.Words[0], testnic.MaxLog) {
		w := r.Words[1+i*testnic.Fields:]
		list = append(list, report{uint32(w[testnic.Region]),
			released{w[testnic.First], w[testnic.Pages], w[testnic.Reason]}, uint32(w[testnic.Generation]),
			w[testnic.Flags] != 0})
	}
	return list
}

func (n *hostNIC) read(p gpudriver.Page, off uint64) uint64 {
	return n.do(testnic.Read, uint64(p.Kind), p.Addr+off).Words[0]
}

func (n *hostNIC) write(p gpudriver.Page, off, x uint64) {
	n.do(testnic.Write, uint64(p.Kind), p.Addr+off, x)
}

type region struct {
	*gpudriver.Region
	nic *hostNIC
	gen uint32
}

func (n *hostNIC) openRegion(f *gpudriver.File, b []byte) *region {
	return &region{must(f.OpenRegion(b))(n.t), n, 0}
}

// fault makes pages from first on present for the NIC ([gpudriver.Region.Fault]). kinds has a letter for the
// expected kind of each: r for RAM, g for the GPU, R and G if writable, and . if invalid.
func (r *region) fault(first uint64, kinds string, write, ram bool) []gpudriver.Page {
	t := r.nic.t
	pages, gen, err := r.Fault(first, len(kinds), write, ram)
	t.ok(err)
	var text strings.Builder
	for _, p := range pages {
		c := map[gpudriver.Kind]string{gpudriver.RAM: "r", gpudriver.VRAM: "g", gpudriver.Invalid: "."}[p.Kind]
		if p.Writable {
			c = strings.ToUpper(c)
		}
		text.WriteString(c)
		t.require(p.Addr%page == 0 && (p.Kind != gpudriver.RAM || p.Addr != 0) &&
			(p.Kind == gpudriver.Invalid) == (p.Err != 0), "%+v", p)
	}
	t.require(text.String() == kinds, "pages [%d, +%d) are %s, and not %s: %+v", first, len(kinds), text.String(), kinds,
		pages)
	t.require(int32(gen-r.gen) >= 0, "generation %d after %d", gen, r.gen)
	r.gen = gen
	return pages
}

func (r *region) mayNotFault(what string, first uint64, want unix.Errno) {
	_, _, err := r.Fault(first, 1, true, false)
	r.nic.t.refused(what, err, want)
}

// mustRelease checks that since the NIC's log was last read the driver has requested the release of exactly these
// pages of r, each time with a later generation than its last answer to fault.
func (r *region) mustRelease(want ...released) {
	list := r.nic.log()
	got := make([]released, len(list))
	ours, newer := true, true
	for i, x := range list {
		got[i] = x.pages
		ours = ours && x.region == r.ID() && !x.givenUp
		newer = newer && int32(x.generation-r.gen) > 0
		r.gen = max(r.gen, x.generation)
	}
	r.nic.t.require(ours && newer && slices.Equal(got, want), "region %d, generation %d: told %+v, and not %v", r.ID(),
		r.gen, list, want)
}

// mustReleaseBefore checks that since the NIC's log was last read the driver has requested one release, of these
// pages, before its last answer to fault.
func (r *region) mustReleaseBefore(want released) {
	list := r.nic.log()
	r.nic.t.require(len(list) == 1 && list[0].pages == want && int32(r.gen-list[0].generation) >= 0,
		"told %+v before an answer of generation %d, and not %v", list, r.gen, want)
}
