package dma

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/epoch"
)

// MaxRegions is the most regions of a space (vfio-user's default max_dma_maps).
const MaxRegions = 65535

// Map describes a region to be mapped: Size bytes at IOVA are the file's bytes at FileOffset; with NoAccess they are
// no file's.
type Map struct {
	IOVA, Size uint64
	FD         int // not closed, and not used after Add or Replace; unused with NoAccess
	FileOffset uint64
	ReadOnly   bool // devices may not write
	NoAccess   bool // translations and pins return ErrAccess
}

// RegionInfo describes a region of a space.
type RegionInfo struct {
	IOVA, Size         uint64
	File               *File // nil with NoAccess
	FileOffset         uint64
	ReadOnly, NoAccess bool
	NotShared          bool // NoAccess is set because the peer has mapped the file privately (SetPeer)
}

// Space is the guest memory that one device can reach.
type Space struct {
	name  string
	files *Files
	table atomic.Pointer[table]
	gen   atomic.Uint64
	epoch epoch.Epoch
	iotlb atomic.Bool
	kept  atomic.Int32 // descriptors that Discard has kept

	counts atomic.Bool // CountMemory was called

	peer peer

	nodes atomic.Int32 // 0: unknown

	mu    sync.Mutex         // held during a change of the table
	count int                // under mu: regions in the table
	using map[*File]struct{} // under mu: files of regions that are mapped, or that workers still use
	reach uint64             // under mu: bytes of the files in using

	left     map[FileID]uint64 // under mu: bytes that unmapped files occupied (CountMemory)
	leftMore uint64            // under mu: such bytes for which left has no room

	faultMu sync.Mutex    // whoever holds it takes no other lock
	faulted chan struct{} // under faultMu
	fault   *FaultError   // under faultMu; not nil once faulted is closed
}

// NewSpace returns an empty space, which maps its files in the registry files. The name appears in errors.
func NewSpace(name string, files *Files) *Space {
	s := &Space{name: name, files: files, using: make(map[*File]struct{}), faulted: make(chan struct{})}
	s.epoch.Init()
	s.table.Store(&table{})
	return s
}

// Name returns the name given to NewSpace.
func (s *Space) Name() string { return s.name }

// SetIOTLB declares whether the regions are entries of an IOTLB, the device's cache of an IOMMU's translations.
// If they are, the error for an address outside all regions is ErrMiss, else ErrUnmapped, in an AddrError.
func (s *Space) SetIOTLB(on bool) { s.iotlb.Store(on) }

// Enter begins a section in which translated segments stay mapped; the goroutine is then a worker. Enter never
// blocks, and one goroutine may be inside several spaces. The caller passes the token to Leave. While it is inside, it
// must not call Remove, RemoveRange, Replace or Close, which wait for it, nor wait for something else. Enter also calls
// Guard.
func (s *Space) Enter() (token int) {
	Guard()
	return s.epoch.Enter()
}

// Leave ends the section that Enter began, and with it the use of its segments.
func (s *Space) Leave(token int) { s.epoch.Leave(token) }

// Generation returns a number that grows with each change of the space's regions; each Replace counts as one.
func (s *Space) Generation() uint64 { return s.gen.Load() }

// Waits returns how often a change has waited for workers.
func (s *Space) Waits() uint64 { return s.epoch.Waits() }

// Add maps a region, without waiting for workers. EEXIST: it overlaps another; EINVAL: a bad range; ENOSPC: too
// many regions, files or bytes of files; ErrBadFile: as for Files.Open; ErrFault: the file has faulted and is still
// mapped.
func (s *Space) Add(m Map) error {
	r, err := s.open(m, false)
	if err != nil {
		return err
	}
	s.mu.Lock()
	t, err := s.with(r)
	if err == nil {
		err = s.attach(r)
	}
	if err == nil {
		s.set(t, s.count+1)
	}
	s.mu.Unlock()
	if err != nil {
		s.drop(r)
		return fmt.Errorf("space %s: add %w", s.name, err)
	}
	return nil
}

func (s *Space) with(r *Region) (*table, error) {
	if s.count >= MaxRegions {
		return nil, fmt.Errorf("%v: %d regions are mapped: %w", r, s.count, unix.ENOSPC)
	}
	return s.table.Load().with(r)
}

// Remove unmaps the region with exactly this address and size (else ENOENT), and waits for workers that may use
// it.
func (s *Space) Remove(iova, size uint64) error {
	s.mu.Lock()
	t := s.table.Load()
	r := t.lastBefore(iova)
	if r == nil || r.iova != iova || r.Size() != size {
		s.mu.Unlock()
		return fmt.Errorf("space %s: remove [%#x, +%#x): no such region: %w", s.name, iova, size, unix.ENOENT)
	}
	s.set(t.without(r), s.count-1)
	s.mu.Unlock()
	s.retire([]*Region{r})
	return nil
}

// RemoveRange unmaps the regions that lie in [iova, iova+size), and waits once for workers that may use them.
// EINVAL: the range cuts a region, or is no valid range; then nothing is changed.
func (s *Space) RemoveRange(iova, size uint64) error {
	s.mu.Lock()
	t := s.table.Load()
	gone, err := t.within(iova, size)
	if err == nil && len(gone) > 0 {
		s.set(t.withoutAll(gone, s.count), s.count-len(gone))
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("space %s: remove %w", s.name, err)
	}
	s.retire(gone)
	return nil
}

// RegionsIn lists the regions that lie in [iova, iova+size), by address; EINVAL as for RemoveRange.
func (s *Space) RegionsIn(iova, size uint64) ([]RegionInfo, error) {
	regions, err := s.table.Load().within(iova, size)
	if err != nil {
		return nil, fmt.Errorf("space %s: %w", s.name, err)
	}
	return infosOf(regions), nil
}

// Replace replaces all regions by the regions of maps at once, and waits for workers that may use old ones. On an
// error it has changed no region.
func (s *Space) Replace(maps []Map) error {
	regions := make([]*Region, 0, min(len(maps), MaxRegions))
	fail := func(err error) error {
		for _, r := range regions {
			s.drop(r)
		}
		return err
	}
	if len(maps) > MaxRegions {
		return fmt.Errorf("space %s: replace: %d regions: %w", s.name, len(maps), unix.ENOSPC)
	}
	for _, m := range maps {
		r, err := s.open(m, true)
		if err != nil {
			return fail(err)
		}
		regions = append(regions, r)
	}
	slices.SortFunc(regions, (*Region).compare)
	for i := 1; i < len(regions); i++ {
		if a, b := regions[i-1], regions[i]; b.iova-a.iova < a.Size() {
			return fail(fmt.Errorf("space %s: replace: %v overlaps %v: %w", s.name, b, a, unix.EEXIST))
		}
	}
	s.mu.Lock()
	old := s.table.Load()
	for i, r := range regions {
		if err := s.attach(r); err != nil {
			for _, r := range regions[:i] {
				s.detach(r)
			}
			s.mu.Unlock()
			return fail(fmt.Errorf("space %s: replace: %w", s.name, err))
		}
	}
	s.set(newTable(regions), len(regions))
	s.mu.Unlock()
	s.retire(old.all())
	return nil
}

// Close removes all regions, and waits for workers that may use them; the error is nil. The space may be used again.
func (s *Space) Close() error { return s.Replace(nil) }

// Regions lists the mapped regions, by address.
func (s *Space) Regions() []RegionInfo { return infosOf(s.table.Load().all()) }

// Has reports whether the space or its workers use a region of f.
func (s *Space) Has(f *File) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.spaces[s] != 0
}

// open makes the region of m, and takes a reference to its file, if it has one. again is passed to isPrivate.
func (s *Space) open(m Map, again bool) (*Region, error) {
	fail := func(err error) (*Region, error) {
		return nil, fmt.Errorf("space %s: region [%#x, +%#x): %w", s.name, m.IOVA, m.Size, err)
	}
	if m.Size == 0 || m.Size-1 > ^uint64(0)-m.IOVA {
		return fail(unix.EINVAL)
	}
	if m.NoAccess {
		return &Region{iova: m.IOVA, size: m.Size, noAccess: true}, nil
	}
	if m.FileOffset > ^uint64(0)-m.Size {
		return fail(fmt.Errorf("file offset %#x: %w", m.FileOffset, unix.EINVAL))
	}
	id, size, err := check(m.FD)
	if err != nil {
		return fail(err)
	}
	id = id.in(s)
	if s.isPrivate(&m, id, again) {
		return &Region{iova: m.IOVA, size: m.Size, noAccess: true, private: true}, nil
	}
	f, err := s.files.openFor(s, m.FD, id, size, m.FileOffset+m.Size)
	if err != nil {
		return fail(err)
	}
	r, err := f.Region(m.FileOffset, m.Size)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("space %s: region at %#x: %w", s.name, m.IOVA, err)
	}
	r.iova, r.readOnly = m.IOVA, m.ReadOnly
	return r, nil
}

func (s *Space) drop(r *Region) {
	if r.file != nil {
		r.file.Close()
	}
}

// attach counts r among the regions that s has of r's file; ENOSPC means that a limit of s is reached. The caller
// holds mu.
func (s *Space) attach(r *Region) error {
	f := r.file
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spaces[s] == 0 {
		if len(s.using) >= maxSpaceFiles || f.Size() > maxSpaceBytes-s.reach {
			return fmt.Errorf("%v: file of %#x bytes: %d of %#x bytes are mapped already: %w",
				r, f.Size(), len(s.using), s.reach, unix.ENOSPC)
		}
		if s.counts.Load() && len(s.using) >= maxCountedFiles {
			return fmt.Errorf("%v: memory is counted, and %d files are mapped already: %w", r, len(s.using), unix.ENOSPC)
		}
		s.using[f] = struct{}{}
		s.reach += f.Size()
		delete(s.left, f.id)
	}
	f.spaces[s]++
	if g := f.gone.Load(); g != nil && g.fault != nil { // the file has died after open
		s.reportFault(g.fault)
	}
	return nil
}

// detach undoes attach for a region that is removed, or that Replace gives up. The caller holds mu.
func (s *Space) detach(r *Region) {
	if r.private {
		s.peer.removed.Add(1)
	}
	f := r.file
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spaces[s]--; f.spaces[s] == 0 {
		delete(f.spaces, s)
		delete(s.using, f)
		s.leave(f)
		s.reach -= f.Size()
	}
}

// retire waits until no worker uses the regions, and releases them.
func (s *Space) retire(old []*Region) {
	if len(old) == 0 {
		return
	}
	if !s.epoch.Empty() {
		s.epoch.Wait()
	}
	s.mu.Lock()
	for _, r := range old {
		s.detach(r)
	}
	s.clearFault()
	s.mu.Unlock()
	for _, r := range old {
		s.drop(r)
	}
}

// set makes t the space's table. The caller holds mu.
func (s *Space) set(t *table, count int) {
	s.table.Store(t)
	s.count = count
	s.gen.Add(1)
	if s.nodes.Load() > 0 {
		s.tellNodes()
	}
}

func (r *Region) compare(q *Region) int { return cmp.Compare(r.iova, q.iova) }

// String returns the region's range, for error messages.
func (r *Region) String() string { return fmt.Sprintf("region [%#x, +%#x)", r.iova, r.Size()) }
