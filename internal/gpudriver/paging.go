package gpudriver

import (
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

// MaxFault bounds the pages of one [Region.Fault].
const MaxFault = 64

// FromFD returns a File that takes over fd, a descriptor of a device that another program has opened and passed on.
// Both programs can use the open file's regions.
func FromFD(fd int) *File { return &File{fd} }

// FD returns the descriptor, which f still owns.
func (f *File) FD() int { return f.fd }

// Mailbox returns the offset of the mailbox in the GPU's memory, and how long the driver waits for an answer. By the
// mailbox the driver requests that the NIC release pages. The driver makes it if there is none.
func (f *File) Mailbox() (off uint64, bound time.Duration, err error) {
	var arg struct {
		Off    uint64
		_, Ack uint32
	}
	err = f.ioctl("VNICGPU_MAILBOX", mailbox, &arg)
	return arg.Off, time.Duration(arg.Ack) * time.Millisecond, err
}

// Region is memory of a program whose pages a NIC may use after [Region.Fault]. It ends with its open file at the
// latest.
type Region struct {
	file *File
	id   uint32
}

// OpenRegion makes a region of memory: whole pages, 1 GiB at most. Pages that the caller unmaps are Invalid for
// later calls of Fault. EMFILE: the file has 16 regions.
func (f *File) OpenRegion(memory []byte) (*Region, error) {
	r, err := f.OpenRegionAt(uint64(reflect.ValueOf(memory).Pointer()), uint64(len(memory)))
	runtime.KeepAlive(memory)
	return r, err
}

// OpenRegionAt is OpenRegion by address and size; no memory need be mapped there.
func (f *File) OpenRegionAt(addr, size uint64) (*Region, error) {
	arg := struct {
		Addr, Size uint64
		ID, _      uint32
	}{Addr: addr, Size: size}
	if err := f.ioctl("VNICGPU_REGION_OPEN", regionOpen, &arg); err != nil {
		return nil, fmt.Errorf("[%#x, +%#x): %w", addr, size, err)
	}
	return f.Region(arg.ID), nil
}

// Region returns the region with a number that OpenRegion has returned for the same open file, in this or another
// program. It does not check that there is one.
func (f *File) Region(id uint32) *Region { return &Region{f, id} }

// ID returns the region's number, which no other region of this guest has until this one is closed.
func (r *Region) ID() uint32 { return r.id }

// Close ends the region. After it the NIC has released the region's pages, or has not answered in time. ENOENT: the
// file has no such region.
func (r *Region) Close() error {
	return r.file.ioctl("VNICGPU_REGION_CLOSE", regionClose, &[2]uint32{r.id})
}

// Kind is the kind of a page's memory.
type Kind uint8

// Kinds of pages.
const (
	Invalid Kind = iota // see Page.Err
	RAM                 // the guest's RAM
	VRAM                // the GPU's memory
)

// Page is the location of a region's page, a result of [Region.Fault].
type Page struct {
	Addr     uint64 // RAM: guest-physical; VRAM: offset in the GPU's memory; Invalid: 0
	Kind     Kind
	Writable bool       // by the NIC
	Err      unix.Errno // of an Invalid page; else 0
}

func pageOf(entry uint64) Page {
	p := Page{Kind: Kind(entry & entryKind)}
	switch p.Kind {
	case RAM, VRAM:
		p.Addr, p.Writable = entry&^(PageSize-1), entry&entryWrite != 0
		return p
	}
	return Page{Err: unix.Errno(entry >> entryErrno)}
}

// Entry encodes the page as VNICGPU_FAULT and control.PageAnswer do.
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

// Fault makes n pages of the region present, from page first on, MaxFault at most, for the NIC to read, and if write
// is true also to write. The NIC may use the pages that are not Invalid until the driver requests their release, with
// a greater generation than the result. If ram is true, the driver moves pages in the GPU to RAM first.
//
// The Err of an Invalid page is EFAULT (not mapped, without the permission, or its page fault failed),
// EOPNOTSUPP (a file's, shared or another device's) or EAGAIN (ask again). The error of the call is EIO if the region
// is quarantined (RegionStats), ESRCH if the program that owns the memory has ended, ENOENT if the file has no such
// region or it is closed, ENODEV if the GPU was removed, EINVAL if n is not from 1 to MaxFault or a page is not the
// region's.
func (r *Region) Fault(first uint64, n int, write, ram bool) (pages []Page, generation uint32, err error) {
	pages = make([]Page, min(max(n, 0), MaxFault))
	generation, err = r.FaultInto(pages, first, n, write, ram)
	if err != nil {
		return nil, 0, err
	}
	return pages, generation, nil
}

// FaultInto is Fault into pages, which must have at least min(n, MaxFault) elements.
func (r *Region) FaultInto(pages []Page, first uint64, n int, write, ram bool) (generation uint32, err error) {
	var entries [MaxFault]uint64
	flags := uint32(0)
	if write {
		flags |= faultWrite
	}
	if ram {
		flags |= faultRAM
	}
	arg := struct {
		ID, Flags         uint32
		First             uint64
		Count, Generation uint32
		Entries           uint64
	}{ID: r.id, Flags: flags, First: first, Count: uint32(n), Entries: uint64(reflect.ValueOf(&entries).Pointer())}
	err = r.file.ioctl("VNICGPU_FAULT", faultPages, &arg)
	runtime.KeepAlive(&entries)
	if err != nil {
		return 0, fmt.Errorf("region %d: pages [%d, +%d): %w", r.id, first, n, err)
	}
	for i := range n {
		pages[i] = pageOf(entries[i])
	}
	return arg.Generation, nil
}

// RegionStats are a region's counters since it was opened, and its present state: Quarantined and Mapped.
type RegionStats struct {
	Quarantined bool // the NIC has not answered in time: it gets no more pages of the region
	_           [3]byte
	Mapped      uint64 // pages that the NIC may use

	Faults             uint64 // successful calls of Fault; the next three are their pages by kind
	RAM, VRAM, Invalid uint64

	Invalidations uint64 // invalidations by Linux or the driver of pages that the NIC could use
	Untold        uint64 // invalidations of other pages, without a request to the NIC
	Refused       uint64 // invalidations that failed, because Linux could not wait for the NIC or a lock
	Timeouts      uint64 // invalidations that the NIC did not confirm in time

	// Waits[i] counts how often Linux waited for w microseconds for the NIC, with 2^i <= w*w < 2^(i+1); the
	// first and last count shorter and longer waits, too.
	Waits [40]uint32
}

// Stats returns the driver's counters of the region.
func (r *Region) Stats() (s RegionStats, err error) {
	arg := struct {
		ID uint32
		RegionStats
	}{ID: r.id}
	if err := r.file.ioctl("VNICGPU_REGION_STATS", regionStats, &arg); err != nil {
		return s, fmt.Errorf("region %d: %w", r.id, err)
	}
	return arg.RegionStats, nil
}

// Poison counts pages of programs that were in the GPU's memory, and were freed or moved to RAM.
type Poison struct {
	Left   uint64 // freed or moved since the first call
	Held   uint64 // free and filled now
	Broken uint64 // found changed while they were free, since the first call
}

// Poison checks the pages that are free and filled, and returns the counts. From the first call on, the driver fills
// pages of programs in the GPU's memory when they are freed or move to RAM.
func (f *File) Poison() (p Poison, err error) {
	err = f.ioctl("VNICGPU_POISON", poison, &p)
	return p, err
}
