package main

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/gpudriver/testnic"
)

// hostNIC commands the NIC on the host (package testnic).
type hostNIC struct {
	file    *gpudriver.File // has the page
	control testnic.Control
}

// withNIC opens a GPU, and has the NIC on the host use it, which answers.
func withNIC(g gpudriver.GPU, do func(f *gpudriver.File, n *hostNIC) error) error {
	f, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	off, err := f.Alloc(page, 0)
	if err != nil || off != 0 {
		return fmt.Errorf("the page of commands is at %#x: %w", off, err)
	}
	mem, err := f.Mmap(off, page)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	n := &hostNIC{f, mem}
	pos, _, err := f.Mailbox()
	if err == nil {
		_, err = n.do(testnic.Attach, pos)
	}
	if err == nil {
		err = n.mode(testnic.Answers)
	}
	if err == nil {
		_, err = n.log()
	}
	if err != nil {
		return err
	}
	return do(f, n)
}

// do has a command be done.
func (n *hostNIC) do(op uint32, args ...uint64) (r testnic.Result, err error) {
	n.control.Command(op, args...)
	err = wait("the NIC on the host has done it", func() (bool, error) { return !n.control.Commanded(), nil })
	if err == nil {
		n.control.GetResult(&r)
	}
	if err == nil && r.Failed {
		err = errors.New("the NIC on the host says why not")
	}
	if err != nil {
		err = fmt.Errorf("command %d %#x: %w", op, args, err)
	}
	return r, err
}

func (n *hostNIC) mode(m uint64) error {
	_, err := n.do(testnic.SetMode, m)
	return err
}

// told is what the NIC was asked.
type report struct {
	region       uint32
	first, pages uint64
	generation   uint32
	reason       uint32
	givenUp      bool
}

// Events of Linux (enum mmu_notifier_event), and our own.
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

// log is what the NIC was asked since the last time.
func (n *hostNIC) log() (list []report, err error) {
	r, err := n.do(testnic.Log)
	if err != nil {
		return nil, err
	}
	for i := range min(r.Words[0], testnic.MaxLog) {
		w := r.Words[1+i*testnic.Fields:]
		list = append(list, report{uint32(w[testnic.Region]), w[testnic.First], w[testnic.Pages],
			uint32(w[testnic.Generation]), uint32(w[testnic.Reason]), w[testnic.Flags] != 0})
	}
	return list, nil
}

// read has the NIC read at a place.
func (n *hostNIC) read(p gpudriver.Page, off uint64) (uint64, error) {
	r, err := n.do(testnic.Read, uint64(p.Kind), p.Addr+off)
	return r.Words[0], err
}

// write has it write there.
func (n *hostNIC) write(p gpudriver.Page, off, x uint64) error {
	_, err := n.do(testnic.Write, uint64(p.Kind), p.Addr+off, x)
	return err
}

// region is a region of which the NIC has had pages, and the generation of the last answer.
type region struct {
	*gpudriver.Region
	nic *hostNIC
	gen uint32
}

// openRegion makes a region of memory.
func (n *hostNIC) openRegion(f *gpudriver.File, b []byte) (*region, error) {
	r, err := f.OpenRegion(b)
	return &region{r, n, 0}, err
}

// fault has pages be there; kinds says what they are to be: r or g, for RAM or the GPU, capital where they may be
// written, . for pages that are invalid.
func (r *region) fault(first uint64, kinds string, write, ram bool) ([]gpudriver.Page, error) {
	pages, gen, err := r.Fault(first, len(kinds), write, ram)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, p := range pages {
		c := map[gpudriver.Kind]string{gpudriver.RAM: "r", gpudriver.VRAM: "g", gpudriver.Invalid: "."}[p.Kind]
		if p.Writable {
			c = strings.ToUpper(c)
		}
		text.WriteString(c)
		if p.Addr%page != 0 || p.Kind == gpudriver.RAM && p.Addr == 0 || (p.Kind == gpudriver.Invalid) != (p.Err != 0) {
			return nil, fmt.Errorf("%+v", p)
		}
	}
	if text.String() != kinds {
		return nil, fmt.Errorf("pages [%d, +%d) are %s, and not %s: %+v", first, len(kinds), text.String(), kinds, pages)
	}
	if int32(gen-r.gen) < 0 {
		return nil, fmt.Errorf("generation %d after %d", gen, r.gen)
	}
	r.gen = gen
	return pages, nil
}

// wasTold checks that the NIC was asked for just that, after the last answer: each is its first page, how many, and
// the reason.
func (r *region) wasTold(want ...[3]uint64) error {
	list, err := r.nic.log()
	if err != nil {
		return err
	}
	bad := len(list) != len(want)
	for i := 0; i < len(list) && !bad; i++ {
		t := list[i]
		bad = t.region != r.ID() || [3]uint64{t.first, t.pages, uint64(t.reason)} != want[i] || t.givenUp ||
			int32(t.generation-r.gen) <= 0
		r.gen = max(r.gen, t.generation) // the next answer is no older
	}
	if bad {
		return fmt.Errorf("region %d, generation %d: told %+v, and not %v", r.ID(), r.gen, list, want)
	}
	return nil
}
