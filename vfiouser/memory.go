package vfiouser

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
)

// shareHint is what the client's user can do about guest memory that comes without a descriptor.
const shareHint = "if this is the guest's RAM, it must be shared: " + peer.ShareFlags

// pageSize is what ranges are made of: pgsizes says so in VERSION (its default is 4 KiB, and QEMU
// knows none smaller). QEMU rounds what it maps to pages (hw/vfio/listener.c,
// vfio_get_section_iova_range), an IOMMU maps no less. Without this a client would have a device
// look at each byte of its guest's memory by itself.
const pageSize = 4096

// dmaMap adds a range to the space. One that comes without a descriptor is recorded all the same,
// as QEMU takes a refusal of its ROMs for the end of the device; the device cannot use it. (Reading
// it by message would be possible; what needs that is a machine without share=on, which is told
// so.)
func (s *session) dmaMap(m *message) error {
	d := peer.Decode[dmaMap](m.body)
	if d.Argsz < dmaMapLen || d.Flags == 0 || d.Flags&^(dmaRead|dmaWrite) != 0 {
		return fmt.Errorf("argsz %d, flags %#x: %w", d.Argsz, d.Flags, unix.EINVAL)
	}
	if (d.IOVA|d.Size|d.Offset)%pageSize != 0 {
		return fmt.Errorf("[%#x, +%#x) from offset %#x of its file: not whole pages of %d bytes: %w",
			d.IOVA, d.Size, d.Offset, pageSize, unix.EINVAL)
	}
	// A range that may be written and not read (an IOMMU's) is taken for one that may be both: it is
	// the guest's own memory that its driver gave us to write to.
	to := dma.Map{IOVA: d.IOVA, Size: d.Size, FileOffset: d.Offset, ReadOnly: d.Flags&dmaWrite == 0}
	if m.fds.Len() == 1 {
		to.FD = m.fds.At(0)
	} else {
		to.FD, to.NoAccess = -1, true
	}
	err := s.space.Add(to)
	if errors.Is(err, dma.ErrBadFile) && !errors.Is(err, dma.ErrBlocked) && to.ReadOnly {
		// The file of a ROM, which is not open for writing: nothing that a device needs.
		to.NoAccess = true
		err = s.space.Add(to)
	}
	if err != nil {
		return err
	}
	// One page is no RAM: QEMU has such a one for a guest's stolen time (hw/arm/virt.c, VIRT_PVTIME).
	if to.NoAccess && !to.ReadOnly && d.Size > pageSize && !s.warnedUnshared {
		s.warnedUnshared = true // once: there may be many, and some are no loss (video memory)
		s.log.Warn("the device cannot reach memory that comes without a descriptor", "iova", fmt.Sprintf("%#x", d.IOVA),
			"size", d.Size, "hint", shareHint)
	}
	s.dev.MemoryChanged()
	return nil
}

// dmaUnmap takes ranges out of the space. The reply says that the device does not use them any
// more: it was told before, and RemoveRange and Replace wait for every worker that is inside the
// space, once for all ranges.
//
// "The address and size of the DMA region being unmapped must match exactly a previous mapping".
// But when a device with an emulated IOMMU is reset, QEMU 11.1 unmaps the whole address space by
// powers of two, whatever is mapped (measured), and reports each error. So it is as in Linux
// (VFIO_IOMMU_UNMAP_DMA of a type 1 v2 IOMMU): a range may contain any number of mappings, none as
// well, and may not cut one.
func (s *session) dmaUnmap(m *message) error {
	d := peer.Decode[dmaUnmap](m.body)
	switch {
	case d.Argsz < dmaUnmapLen || d.Flags&^(unmapDirty|unmapAll) != 0:
		return fmt.Errorf("argsz %d, flags %#x: %w", d.Argsz, d.Flags, unix.EINVAL)
	case d.Flags&unmapDirty != 0:
		return fmt.Errorf("dirty pages are not logged: %w", unix.ENOTSUP)
	}
	unmap := s.unmap
	if d.Flags&unmapAll != 0 {
		unmap = s.unmapAll
	}
	n, err := unmap(&d)
	if err != nil {
		return err
	}
	if n > 0 {
		s.dev.MemoryChanged()
	}
	s.out = append(s.out, m.body...) // "The server responds with the original DMA entry in the request"
	return nil
}

// unmapAll takes all ranges out of the space, and tells how many those were.
func (s *session) unmapAll(d *dmaUnmap) (n int, err error) {
	if d.IOVA != 0 || d.Size != 0 { // as Linux has it
		return 0, fmt.Errorf("all of [%#x, +%#x): %w", d.IOVA, d.Size, unix.EINVAL)
	}
	all := s.space.Regions()
	s.unmapping(all)
	return len(all), s.space.Replace(nil)
}

// unmap takes the ranges inside d out of the space, and tells how many those were.
func (s *session) unmap(d *dmaUnmap) (n int, err error) {
	inside, err := s.space.RegionsIn(d.IOVA, d.Size)
	if err != nil || len(inside) == 0 {
		return 0, err
	}
	s.unmapping(inside)
	return len(inside), s.space.RemoveRange(d.IOVA, d.Size)
}

func (s *session) unmapping(regions []dma.RegionInfo) {
	for i := range regions {
		s.dev.Unmapping(regions[i].IOVA, regions[i].Size)
	}
}
