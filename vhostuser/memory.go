package vhostuser

import (
	"fmt"
	"slices"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
)

// region is a piece of the frontend's memory, and the identity of its file.
type region struct {
	memRegion
	file dma.FileID
}

func newRegion(r memRegion, fd int) (region, error) {
	file, err := dma.FileIDOf(fd)
	return region{r, file}, peer.Wrap(err, "region at %#x", r.GPA)
}

// location is a guest-physical address, with the file and offset that are mapped there.
type location struct {
	gpa  uint64
	file dma.FileID
	off  uint64
}

// pageSize is the granularity of regions. QEMU shares RAM in sections of whole pages (hw/virtio/vhost.c,
// vhost_region_add_section).
const pageSize = 4096

// check returns an error for a region that is empty, goes beyond an address space, or does not consist of whole pages.
// Its user address may lie within a page.
func (r *memRegion) check() error {
	switch last := r.Size - 1; {
	case r.Size == 0:
		return fmt.Errorf("region at %#x: empty: %w", r.GPA, ErrBadMessage)
	case last > ^r.GPA:
		return fmt.Errorf("region at %#x: %#x bytes go beyond the address space: %w", r.GPA, r.Size, ErrBadMessage)
	case last > ^r.User:
		return fmt.Errorf("region at user address %#x: %#x bytes go beyond the address space: %w", r.User, r.Size,
			ErrBadMessage)
	case last > ^r.Offset:
		return fmt.Errorf("region at %#x: %#x bytes from mmap offset %#x: %w", r.GPA, r.Size, r.Offset, ErrBadMessage)
	case (r.GPA|r.Size|r.Offset)%pageSize != 0:
		return fmt.Errorf("region at %#x: %#x bytes from mmap offset %#x: not whole pages of %d bytes: %w",
			r.GPA, r.Size, r.Offset, pageSize, ErrMemory)
	}
	return nil
}

func (r *memRegion) dma(fd int) dma.Map {
	return dma.Map{IOVA: r.GPA, Size: r.Size, FD: fd, FileOffset: r.Offset}
}

// same reports whether the regions are the same for REM_MEM_REG: "identified by its guest address, user address
// and size. The mmap offset is ignored".
func (r *memRegion) same(q *memRegion) bool {
	return r.GPA == q.GPA && r.User == q.User && r.Size == q.Size
}

// translate returns where the user addresses [user, user+n) are; they must lie in one region, else it is ErrMemory.
func translate(regions []region, user, n uint64) (location, error) {
	for i := range regions {
		r := &regions[i]
		if off := user - r.User; user >= r.User && off < r.Size && n <= r.Size-off {
			return location{r.GPA + off, r.file, r.Offset + off}, nil
		}
	}
	return location{}, fmt.Errorf("user address [%#x, +%#x) is not in one of the %d regions that the frontend shares: "+
		"%w (%s)", user, n, len(regions), ErrMemory, shareHint)
}

// QEMU sends no region for memory without a descriptor, but it does send the addresses of rings that lie in it.
const shareHint = "is the guest's memory shared? QEMU: " + peer.ShareFlags

// memoryError wraps err, about a file or the space, with ErrMemory and shareHint. nil stays nil.
func memoryError(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w (%s)", what, ErrMemory, err, shareHint)
}

func (s *session) setMemTable(m *message) ([]byte, error) {
	table, err := decodeMemTable(m.body)
	if err != nil {
		return nil, fmt.Errorf("SET_MEM_TABLE: %w", err)
	}
	if len(table) != m.fds.Len() {
		return nil, fmt.Errorf("SET_MEM_TABLE: %d regions with %d descriptors: %w", len(table), m.fds.Len(), ErrBadMessage)
	}
	next := make([]region, len(table))
	maps := make([]dma.Map, len(table))
	for i := range table {
		if err := table[i].check(); err != nil {
			return nil, fmt.Errorf("SET_MEM_TABLE: %d: %w", i, err)
		}
		if next[i], err = newRegion(table[i], m.fds.At(i)); err != nil {
			return nil, memoryError("SET_MEM_TABLE", err)
		}
		maps[i] = table[i].dma(m.fds.At(i))
	}
	return nil, s.remap(next, func() error { return memoryError("SET_MEM_TABLE", s.space.Replace(maps)) })
}

func (s *session) getMaxMemSlots(*message) ([]byte, error) { return replyU64(MaxMemSlots) }

// The specification's "reply payload" is for postcopy, which the Backend does not offer.
func (s *session) addMemReg(m *message) ([]byte, error) {
	r := peer.Decode[singleRegion](m.body)
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("ADD_MEM_REG: %w", err)
	}
	if len(s.regions) >= MaxMemSlots {
		return nil, fmt.Errorf("ADD_MEM_REG: all %d slots are used: %w", MaxMemSlots, ErrMemory)
	}
	added, err := newRegion(r.memRegion, m.fds.At(0))
	if err != nil {
		return nil, memoryError("ADD_MEM_REG", err)
	}
	next := append(slices.Clone(s.regions), added)
	return nil, s.remap(next, func() error { return memoryError("ADD_MEM_REG", s.space.Add(r.dma(m.fds.At(0)))) })
}

func (s *session) remMemReg(m *message) ([]byte, error) {
	r := peer.Decode[singleRegion](m.body)
	i := slices.IndexFunc(s.regions, func(q region) bool { return q.same(&r.memRegion) })
	if i < 0 {
		return nil, fmt.Errorf("REM_MEM_REG: no region of %#x bytes at %#x, user address %#x: %w", r.Size, r.GPA, r.User,
			ErrMemory)
	}
	next := slices.Delete(slices.Clone(s.regions), i, i+1)
	return nil, s.remap(next, func() error {
		if err := s.space.Remove(r.GPA, r.Size); err != nil {
			return fmt.Errorf("REM_MEM_REG: %w: %w", ErrMemory, err)
		}
		return nil
	})
}

// remap replaces the session's regions by the regions in next, and calls apply, which changes the space. Before, it
// stops the live rings with a part that is elsewhere, or missing, in the new regions. If apply fails, the regions stay.
// Then, also in that case, it starts the complete rings that lie in the session's regions.
func (s *session) remap(next []region, apply func() error) error {
	for i := range s.rings {
		r := &s.rings[i]
		if !r.live {
			continue
		}
		if p, err := r.locate(next); err != nil || p != r.located {
			if err := s.pauseRing(i); err != nil {
				s.log.Warn("vhost-user queue did not stop well", "queue", i, "error", err)
			}
		}
	}
	err := apply()
	if err == nil {
		s.unreached = s.unreached && slices.Equal(s.regions, next)
		s.regions = next
		if err = s.dev.MemoryChanged(); err != nil {
			err = fmt.Errorf("device with new memory: %w", err)
		}
	}
	for i := range s.rings {
		r := &s.rings[i]
		if _, e := r.locate(s.regions); e != nil || !r.complete() {
			continue // its memory, or the rest of its description, may come with a later message
		}
		if e := s.startRing(i); e != nil {
			s.log.Warn("vhost-user queue did not start again", "queue", i, "error", e)
		}
	}
	return err
}
