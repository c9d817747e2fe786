package vfiouser

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
)

// shareHint tells the client's user how to share guest memory.
const shareHint = "if this is the guest's RAM, it must be shared: " + peer.ShareFlags

// pageSize is the granularity of mapped ranges in bytes. QEMU rounds the ranges that it maps to pages
// (hw/vfio/listener.c, vfio_get_section_iova_range).
const pageSize = 4096

// dmaMap serves DMA_MAP. It accepts a range without a descriptor, and gives the device no access to it: QEMU exits if a
// server refuses to map its ROMs.
func (s *session) dmaMap(m *message) error {
	d := peer.Decode[dmaMap](m.body)
	if d.Argsz < dmaMapLen || d.Flags == 0 || d.Flags&^(dmaRead|dmaWrite) != 0 {
		return fmt.Errorf("argsz %d, flags %#x: %w", d.Argsz, d.Flags, unix.EINVAL)
	}
	if (d.IOVA|d.Size|d.Offset)%pageSize != 0 {
		return fmt.Errorf("[%#x, +%#x) from offset %#x of its file: not whole pages of %d bytes: %w",
			d.IOVA, d.Size, d.Offset, pageSize, unix.EINVAL)
	}
	// A range that the device may only write (from an emulated IOMMU) is mapped for reads and writes.
	to := dma.Map{IOVA: d.IOVA, Size: d.Size, FileOffset: d.Offset, ReadOnly: d.Flags&dmaWrite == 0}
	if m.fds.Len() == 1 {
		to.FD = m.fds.At(0)
	} else {
		to.FD, to.NoAccess = -1, true
	}
	err := s.space.Add(to)
	if errors.Is(err, dma.ErrBadFile) && !errors.Is(err, dma.ErrBlocked) && to.ReadOnly {
		// Probably the file of a ROM, not open for writing.
		to.NoAccess = true
		err = s.space.Add(to)
	}
	if err != nil {
		return err
	}
	// No warning about one page: QEMU maps a page without a descriptor for an arm64 guest's stolen time (hw/arm/virt.c,
	// VIRT_PVTIME).
	if to.NoAccess && !to.ReadOnly && d.Size > pageSize && !s.warnedUnshared {
		s.warnedUnshared = true // warn once: there may be many such ranges
		s.log.Warn("the device cannot reach memory that comes without a descriptor", "iova", fmt.Sprintf("%#x", d.IOVA),
			"size", d.Size, "hint", shareHint)
	}
	s.dev.MemoryChanged()
	return nil
}

// If dmaUnmap removes ranges, every goroutine that was inside the space (dma.Space.Enter) has left it before
// the reply.
//
// "The address and size of the DMA region being unmapped must match exactly a previous mapping". But QEMU 11.1
// also unmaps the whole address space by powers of two, whatever is mapped (measured). So the rule is Linux's
// (VFIO_IOMMU_UNMAP_DMA of a type 1 v2 IOMMU): a range may contain any number of mappings, but must not cut
// one.
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

func (s *session) unmapAll(d *dmaUnmap) (n int, err error) {
	if d.IOVA != 0 || d.Size != 0 { // as in Linux
		return 0, fmt.Errorf("all of [%#x, +%#x): %w", d.IOVA, d.Size, unix.EINVAL)
	}
	all := s.space.Regions()
	s.unmapping(all)
	return len(all), s.space.Replace(nil)
}

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
