//go:build amd64 || arm64

package virtq

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Only this file of the package uses unsafe: for the 16-bit fields that both ends of a ring share, and to view bytes as
// descriptors and ring entries.
//
// Go has no 16-bit atomics, so:
//
//   - A load reads the aligned 32-bit word that contains the field, atomically. The word's other half may lie outside
//     the ring (the avail ring may be 2 mod 4), but not outside its page: an aligned word does not cross one.
//   - A 32-bit store is allowed only where this end owns both halves: {flags, idx} of the ring that this end writes.
//   - avail_event and used_event are stored as 16 bits, by an ordinary aligned store: a 32-bit one could write
//     two bytes that belong to the owner of the memory behind the ring.
//
// Three orders are needed:
//
//   - acquire: loading the peer's idx comes before reading the entries that it covers;
//   - release: writing entries (and the buffers they name) comes before storing our idx;
//   - full (store, then load): our idx before the peer's event or flags; our event or flags before the peer's idx.
//     Without it both ends may miss each other's store, and sleep for ever.
//
// amd64: loads are not reordered with loads nor stores with stores (TSO). atomic.StoreUint32 is XCHG, which is locked,
// thus a full barrier; it also drains the non-temporal stores of a large memmove.
//
// arm64: atomic.LoadUint32 is LDAR (acquire), atomic.StoreUint32 is STLR (release), and an LDAR does not pass an
// earlier STLR (Arm ARM B2.3, barrier-ordered-before: [L]; po; [A]). The 16-bit STRH of an event is followed by an
// STLR to a private word (fence): STRH is before STLR, STLR before LDAR. (Without LSE a read-modify-write is a loop
// around LDAXR and STLXR, into which the later load may move.)
//
// A driver in a guest that QEMU emulates needs more. With one virtual processor TCG translates a locked instruction to
// a plain load and store (CF_PARALLEL is not set), and STLR before LDAR orders nothing. TCG keeps explicit barriers for
// any number of processors (tcg_gen_mb: "even with a single cpu we have i/o threads running in parallel"), so such a
// driver (DriverConfig.Emulated) executes one: barrier, in fence_$GOARCH.s.
//
// A build with -race needs the barrier too. There atomic.StoreUint32 calls ThreadSanitizer, whose store to memory
// outside the Go heap (a ring's) is a plain release store
// (tsan_interface_atomic.cpp, __tsan_go_atomic32_store: mo_release).

// field is a 16-bit little-endian field in shared memory.
type field struct {
	word  *uint32 // the aligned word that contains the field
	shift uint8   // 0: lower half, 16: upper half
}

// fieldAt returns the field at off of b. It is an error if the field does not lie in b or is not 2-aligned.
func fieldAt(b []byte, off int) (field, error) {
	if off < 0 || len(b) < 2 || off > len(b)-2 {
		return field{}, fmt.Errorf("field at %d of %d bytes: %w", off, len(b), ErrBadRing)
	}
	p := unsafe.Pointer(&b[off])
	if uintptr(p)&1 != 0 {
		return field{}, fmt.Errorf("field at %d: odd address: %w", off, ErrBadRing)
	}
	half := uintptr(p) & 2
	// An aligned word does not cross a page.
	return field{word: (*uint32)(unsafe.Add(p, -int(half))), shift: uint8(half * 8)}, nil
}

// load is an acquire.
func (f field) load() uint16 { return uint16(atomic.LoadUint32(f.word) >> (f.shift & 31)) }

// store orders nothing. A little-endian word has its upper half at +2.
func (f field) store(v uint16) {
	*(*uint16)(unsafe.Add(unsafe.Pointer(f.word), int(f.shift>>3))) = v
}

// header is {flags u16, idx u16} at the start of an avail or used ring.
type header struct{ word *uint32 }

// headerAt returns the header at the start of b. It is an error if b is shorter, or is not 4-aligned in memory.
func headerAt(b []byte) (header, error) {
	if len(b) < 4 {
		return header{}, fmt.Errorf("ring of %d bytes: %w", len(b), ErrBadRing)
	}
	p := unsafe.Pointer(&b[0])
	if uintptr(p)&3 != 0 {
		return header{}, fmt.Errorf("ring not 4-aligned in memory: %w", ErrBadRing)
	}
	return header{word: (*uint32)(p)}, nil
}

// store is a release, and on a processor that is not emulated also a full barrier before later calls of field.load.
func (h header) store(flags, idx uint16) {
	atomic.StoreUint32(h.word, uint32(flags)|uint32(idx)<<16)
	if raceEnabled {
		barrier()
	}
}

// barrier executes MFENCE on amd64, DMB ISH on arm64.
func barrier()

// A fence's full lets earlier stores come before later calls of field.load, on a processor that is not emulated.
type fence struct{ word uint32 }

func (f *fence) full() {
	atomic.StoreUint32(&f.word, 0)
	if raceEnabled {
		barrier()
	}
}

// rows returns b as a slice of descriptors or ring entries. They are arrays of bytes, so b needs no alignment.
func rows[R [descLen]byte | [availElem]byte | [usedElem]byte](b []byte) []R {
	var r R
	n := len(b) / int(unsafe.Sizeof(r))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*R)(unsafe.Pointer(&b[0])), n)
}

func aligned(b []byte, n uintptr) bool {
	return len(b) > 0 && uintptr(unsafe.Pointer(&b[0]))%n == 0
}

// fieldPlace is where fields finds a field: at off of b.
type fieldPlace struct {
	f   *field
	b   []byte
	off int
}

// fields sets several fields by fieldAt.
func fields(ps ...fieldPlace) (err error) {
	for _, p := range ps {
		if *p.f, err = fieldAt(p.b, p.off); err != nil {
			return err
		}
	}
	return nil
}
