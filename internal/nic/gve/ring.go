package gve

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/dma"
)

const ringLimit = 1 << 15

// errBadRing is wrapped by errors about the length, address or alignment of a ring, or about buffer sizes.
var errBadRing = errors.New("bad ring")

// ringPage is the size of the pieces of a ring that lies in several regions: an IOMMU maps no smaller pages.
const ringPage = 4096

type ring struct {
	iova, size uint64
	mask       uint32   // entries - 1
	entry      uint32   // bytes of an entry
	pages      [][]byte // the whole ring, or its pieces of ringPage bytes
	shift      uint     // log2 of the length of an element of pages
	pins       []*dma.Pin
}

// pin pins the memory of a ring, or after an error nothing. Each access to the ring must be guarded with dma.Recover.
func (r *ring) pin(space *dma.Space, iova uint64, entries, entry int) (err error) {
	if entries < 2 || entries > ringLimit || entries&(entries-1) != 0 {
		return fmt.Errorf("ring of %d: not a power of two up to %d: %w", entries, ringLimit, errBadRing)
	}
	*r = ring{iova: iova, size: uint64(entries) * uint64(entry), mask: uint32(entries - 1), entry: uint32(entry)}
	if iova%uint64(entry) != 0 || iova > ^uint64(0)-r.size {
		return fmt.Errorf("ring at %#x: not aligned to its descriptors, or beyond the end: %w", iova, errBadRing)
	}
	piece := r.size // the whole ring, if it lies in one region
	p, err := space.Pin(iova, piece)
	if err != nil && iova%ringPage == 0 && piece > ringPage {
		piece = ringPage
		p, err = space.Pin(iova, piece)
	}
	for r.shift = 0; 1<<r.shift < piece; r.shift++ {
	}
	for off := piece; err == nil; off += piece {
		r.pins, r.pages = append(r.pins, p), append(r.pages, p.Bytes())
		if !p.Aligned(4) {
			err = fmt.Errorf("ring at %#x: not aligned in its memory: %w", iova, errBadRing)
			break
		}
		if off >= r.size {
			return nil
		}
		p, err = space.Pin(iova+off, piece)
	}
	r.close()
	return err
}

// entryAt returns entry i, modulo the ring's length. An entry crosses no page boundary: its address is a multiple of
// its length.
func (r *ring) entryAt(i uint32) []byte {
	off := uint64(i&r.mask) * uint64(r.entry)
	in := off & (1<<r.shift - 1)
	return r.pages[off>>r.shift][in : in+uint64(r.entry)]
}

// even reports whether index i is in an even lap of the ring. The first lap is even. In even laps the generation
// bit of completions is 1.
func (r *ring) even(i uint32) bool { return i&(r.mask+1) == 0 }

func (r *ring) overlaps(iova, n uint64) bool {
	return r.pins != nil && (iova >= r.iova && iova-r.iova < r.size || r.iova >= iova && r.iova-iova < n)
}

type rings struct{ in, out ring } // in has descriptors or buffers, out completions

// pin pins the memory of both rings, with entries of descLen (in) and complLen (out) bytes. what names
// the entries of in for errors.
func (r *rings) pin(space *dma.Space, p *ringParams, what string, descLen, complLen int) error {
	if err := r.in.pin(space, p.desc, p.size, descLen); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := r.out.pin(space, p.compl, p.complSize, complLen); err != nil {
		r.in.close()
		return fmt.Errorf("completions: %w", err)
	}
	return nil
}

func (r *rings) overlap(iova, n uint64) bool {
	return r.in.overlaps(iova, n) || r.out.overlaps(iova, n)
}

func (r *rings) close() {
	r.in.close()
	r.out.close()
}

func (r *ring) close() {
	for _, p := range r.pins {
		p.Close()
	}
	r.pins, r.pages = nil, nil
}
