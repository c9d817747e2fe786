package gpudriver

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mailbox     = 0x8010e905 // VNICGPU_MAILBOX: _IOR(0xE9, 5, struct vnicgpu_mailbox)
	regionOpen  = 0xc018e906 // VNICGPU_REGION_OPEN: _IOWR(0xE9, 6, struct vnicgpu_region_open)
	regionClose = 0x4008e907 // VNICGPU_REGION_CLOSE: _IOW(0xE9, 7, struct vnicgpu_region_close)
	faultPages  = 0xc020e908 // VNICGPU_FAULT: _IOWR(0xE9, 8, struct vnicgpu_fault)
	regionStats = 0xc0f0e909 // VNICGPU_REGION_STATS: _IOWR(0xE9, 9, struct vnicgpu_region_stats)
	poison      = 0x8018e90a // VNICGPU_POISON: _IOR(0xE9, 10, struct vnicgpu_poison)

	faultWrite = 1 // VNICGPU_FAULT_WRITE
	faultRAM   = 2 // VNICGPU_FAULT_RAM

	entryKind  = 3  // VNICGPU_ENTRY_KIND
	entryWrite = 4  // VNICGPU_ENTRY_WRITE
	entryErrno = 16 // VNICGPU_ENTRY_ERRNO
)

// MaxFault is how many pages one Fault asks for at most.
const MaxFault = 64

// FromFD takes over the descriptor of a device that another program has opened: regions of its memory are the file's,
// which both have (Region).
func FromFD(fd int) *File { return &File{fd} }

// FD is the descriptor, which stays the file's: another program may be given it.
func (f *File) FD() int { return f.fd }

// Mailbox says where the host finds the mailbox in the GPU's memory, by which the driver tells the NIC of pages that it
// has to let go of, and for how long the driver waits for its answer.
func (f *File) Mailbox() (off uint64, bound time.Duration, err error) {
	arg := make([]byte, 16)
	if err := f.call("VNICGPU_MAILBOX", mailbox, arg); err != nil {
		return 0, 0, err
	}
	ne := binary.NativeEndian
	return ne.Uint64(arg), time.Duration(ne.Uint32(arg[12:])) * time.Millisecond, nil
}

// Region is memory of a program of which a NIC may have pages. It is the file's, and closed with it at the latest.
type Region struct {
	file *File
	id   uint32
}

// OpenRegion makes a region of memory, whole pages, 1 GiB at most, which the caller does not let go of. EMFILE: the
// file has 16.
func (f *File) OpenRegion(memory []byte) (*Region, error) {
	r, err := f.OpenRegionAt(uint64(reflect.ValueOf(memory).Pointer()), uint64(len(memory)))
	runtime.KeepAlive(memory)
	return r, err
}

// OpenRegionAt is OpenRegion by address. Nothing need be mapped there.
func (f *File) OpenRegionAt(addr, size uint64) (*Region, error) {
	ne := binary.NativeEndian
	arg := ne.AppendUint64(ne.AppendUint64(ne.AppendUint64(nil, addr), size), 0)
	if err := f.call("VNICGPU_REGION_OPEN", regionOpen, arg); err != nil {
		return nil, fmt.Errorf("[%#x, +%#x): %w", addr, size, err)
	}
	return f.Region(ne.Uint32(arg[16:])), nil
}

// Region is a region that another program with the same file has opened, by its number.
func (f *File) Region(id uint32) *Region { return &Region{f, id} }

// ID is the region's number, which no other has in this guest.
func (r *Region) ID() uint32 { return r.id }

// Close has the NIC let go of all pages, and ends the region.
func (r *Region) Close() error {
	return r.file.call("VNICGPU_REGION_CLOSE", regionClose, binary.NativeEndian.AppendUint64(nil, uint64(r.id)))
}

// Kind says what a page is.
type Kind uint8

// The kinds of pages.
const (
	Invalid Kind = iota // none, for Err
	RAM                 // of the guest's
	VRAM                // of the GPU's memory
)

// Page is where a page of a region is.
type Page struct {
	Addr     uint64 // guest-physical of RAM, an offset of VRAM
	Kind     Kind
	Writable bool       // the NIC may write
	Err      unix.Errno // of one that is Invalid
}

// pageOf reads VNICGPU_ENTRY_....
func pageOf(entry uint64) Page {
	p := Page{Kind: Kind(entry & entryKind)}
	switch p.Kind {
	case RAM, VRAM:
		p.Addr, p.Writable = entry&^(PageSize-1), entry&entryWrite != 0
		return p
	}
	return Page{Err: unix.Errno(entry >> entryErrno)}
}

// Entry is the page as VNICGPU_FAULT's answer has it, and a NIC's request for pages (package control, PageAnswer).
func (p Page) Entry() uint64 {
	switch p.Kind {
	case RAM, VRAM:
		e := p.Addr | uint64(p.Kind)
		if p.Writable {
			e |= entryWrite
		}
		return e
	}
	return uint64(p.Err) << entryErrno
}

// Fault has n pages of the region be there, MaxFault at most, for the NIC to read, or to write as well: it may use them
// until it is told otherwise by a request with a greater generation. ram: pages in the GPU come back to RAM first.
//
// A page that is Invalid is EFAULT (nothing is mapped there, or not for that), EOPNOTSUPP (a file's or shared) or
// EAGAIN (it changes too fast; ask again). The error of all is EIO for a region that is quarantined, ESRCH where the
// program whose memory it is has ended, ENOENT where the region is closed, ENODEV where the GPU was removed.
func (r *Region) Fault(first uint64, n int, write, ram bool) (pages []Page, generation uint32, err error) {
	pages = make([]Page, min(max(n, 0), MaxFault))
	generation, err = r.FaultInto(pages, first, n, write, ram)
	if err != nil {
		return nil, 0, err
	}
	return pages, generation, nil
}

// FaultInto is Fault of n pages into the caller's pages, of which there are as many.
func (r *Region) FaultInto(pages []Page, first uint64, n int, write, ram bool) (generation uint32, err error) {
	var entries [MaxFault]uint64
	flags := uint32(0)
	if write {
		flags |= faultWrite
	}
	if ram {
		flags |= faultRAM
	}
	ne := binary.NativeEndian
	arg := make([]byte, 32)
	ne.PutUint32(arg, r.id)
	ne.PutUint32(arg[4:], flags)
	ne.PutUint64(arg[8:], first)
	ne.PutUint32(arg[16:], uint32(n))
	ne.PutUint64(arg[24:], uint64(reflect.ValueOf(&entries).Pointer()))
	err = r.file.call("VNICGPU_FAULT", faultPages, arg)
	runtime.KeepAlive(&entries)
	if err != nil {
		return 0, fmt.Errorf("region %d: pages [%d, +%d): %w", r.id, first, n, err)
	}
	for i := range n {
		pages[i] = pageOf(entries[i])
	}
	return ne.Uint32(arg[20:]), nil
}

// RegionStats is what of a region was, ever.
type RegionStats struct {
	Quarantined bool   // the NIC has not answered in time: it gets no page of it any more
	Mapped      uint64 // pages that the NIC may have, now

	Faults             uint64 // that were answered, with
	RAM, VRAM, Invalid uint64 // pages

	Invalidations uint64 // of pages that the NIC may have had: it was told
	Untold        uint64 // of others
	Refused       uint64 // where Linux did not want to wait, and the NIC was told nothing
	Timeouts      uint64

	// Waits[i] counts how often Linux has waited for w microseconds for the NIC, where 2^i <= w*w < 2^(i+1); the first has
	// those of 0, too, the last those that are longer.
	Waits [40]uint32
}

// Stats asks the driver.
func (r *Region) Stats() (s RegionStats, err error) {
	ne := binary.NativeEndian
	arg := make([]byte, 240)
	ne.PutUint32(arg, r.id)
	if err := r.file.call("VNICGPU_REGION_STATS", regionStats, arg); err != nil {
		return s, fmt.Errorf("region %d: %w", r.id, err)
	}
	s.Quarantined = ne.Uint32(arg[4:]) != 0
	for i, p := range []*uint64{&s.Mapped, &s.Faults, &s.RAM, &s.VRAM, &s.Invalid, &s.Invalidations, &s.Untold, &s.Refused,
		&s.Timeouts} {
		*p = ne.Uint64(arg[8+8*i:])
	}
	for i := range s.Waits {
		s.Waits[i] = ne.Uint32(arg[80+4*i:])
	}
	return s, nil
}

// Poison is what became of pages that programs had in the GPU and have left.
type Poison struct {
	Left   uint64 // so many, ever
	Held   uint64 // of them are free now
	Broken uint64 // were written to after they were left, before somebody got them: ever
}

// Poison has the driver fill pages as they are left, from the first call on, and look at all that are free.
func (f *File) Poison() (p Poison, err error) {
	arg := make([]byte, 24)
	if err := f.call("VNICGPU_POISON", poison, arg); err != nil {
		return p, err
	}
	ne := binary.NativeEndian
	return Poison{ne.Uint64(arg), ne.Uint64(arg[8:]), ne.Uint64(arg[16:])}, nil
}
