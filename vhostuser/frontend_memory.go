package vhostuser

import (
	"errors"
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

// MemRegion is one piece of the frontend's memory.
type MemRegion struct {
	FD     int    // a file such as a memfd, open for reading and writing
	GPA    uint64 // guest-physical address
	User   uint64 // address in the frontend: any unique base
	Size   uint64
	Offset uint64 // of the region in FD, in bytes
}

var errNoFD = errors.New("memory without a descriptor")

func (r *MemRegion) wire() memRegion { return memRegion{r.GPA, r.Size, r.User, r.Offset} }

// AddMemory shares [off, off+size) of fd, which the caller keeps, at the guest-physical address gpa and the
// user address user. Without CONFIGURE_MEM_SLOTS there are at most MaxTableRegions.
func (f *Frontend) AddMemory(fd int, gpa, user, size, off uint64) error {
	if fd < 0 {
		return errNoFD
	}
	r := MemRegion{fd, gpa, user, size, off}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.protocol&ProtocolMemSlots != 0 {
		return f.commandLocked(AddMemReg, r.single(), fd)
	}
	return f.sendTable(append(slices.Clone(f.table), r))
}

// RemoveMemory stops sharing a region. With REPLY_ACK, the backend no longer touches it after a return without
// an error.
func (f *Frontend) RemoveMemory(gpa, user, size uint64) error {
	r := MemRegion{GPA: gpa, User: user, Size: size}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.protocol&ProtocolMemSlots != 0 {
		return f.commandLocked(RemMemReg, r.single())
	}
	i := slices.IndexFunc(f.table, func(q MemRegion) bool { return q.GPA == gpa && q.User == user && q.Size == size })
	if i < 0 {
		return fmt.Errorf("SET_MEM_TABLE: no region of %#x bytes at %#x, user address %#x", size, gpa, user)
	}
	return f.sendTable(slices.Delete(slices.Clone(f.table), i, i+1))
}

// SetMemTable replaces all regions, by at most MaxTableRegions. The caller keeps their descriptors.
func (f *Frontend) SetMemTable(regions []MemRegion) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sendTable(regions)
}

func (r *MemRegion) single() []byte { return peer.Append(nil, singleRegion{memRegion: r.wire()}) }

// sendTable sends a SET_MEM_TABLE with the regions next, and keeps them, with duplicates of their descriptors, in
// f.table. After an error f.table is as before, or empty if the connection is closed.
func (f *Frontend) sendTable(next []MemRegion) error {
	if len(next) > MaxTableRegions {
		return fmt.Errorf("SET_MEM_TABLE: %d regions: %w: %d at most without CONFIGURE_MEM_SLOTS", len(next), errTooLong,
			MaxTableRegions)
	}
	table := make([]MemRegion, 0, len(next))
	wire := make([]memRegion, len(next))
	fds := make([]int, len(next))
	for i, r := range next {
		fd, err := scm.Dup(r.FD)
		if err == nil && fd < 0 {
			err = errNoFD
		}
		if err != nil {
			closeTable(table)
			return fmt.Errorf("SET_MEM_TABLE: %w", err)
		}
		wire[i], fds[i] = r.wire(), fd
		r.FD = fd
		table = append(table, r)
	}
	if err := f.commandLocked(SetMemTable, appendMemTable(nil, wire), fds...); err != nil {
		closeTable(table)
		return err
	}
	closeTable(f.table)
	f.table = table
	return nil
}

func closeTable(table []MemRegion) {
	for i := range table {
		scm.Close(table[i].FD)
	}
}
