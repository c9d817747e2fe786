package stack

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
)

// This is the one file of the package that uses unsafe: it gives netstack payload views over memory
// that cannot be read. A buffer.View is {read, write int; chunk *chunk}, a chunk is {references,
// data []byte}; the chunk of a view of more than buffer.MaxChunkSize bytes is never pooled, so its
// data can be replaced by a reservation. initShadow proves the layout before the first use; a
// gVisor that has changed it makes New fail, never corrupts.

// Each frame's payload gets one slot of the shadow, however its pages are scattered: so it is one view.
const (
	slotShift = 16
	slotSize  = 1 << slotShift // payload of the largest frame, in bytes
	junkSlot  = 0              // for payload that the stack will not deliver
)

// shadow is address space, reserved and not accessible, that stands for received payload. Any touch of it is a fault.
// Its owner is the receive queue's lock, except for find, which needs no lock.
type shadow struct {
	mem  []byte // PROT_NONE
	lo   uintptr
	base *buffer.View // all of mem
}

// newShadow reserves slots slots, junkSlot included.
func newShadow(slots int) (*shadow, error) {
	if errLayout != nil {
		return nil, errLayout
	}
	n := slots << slotShift
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("shadow of %d bytes of address space: %w", n, err)
	}
	base := buffer.NewView(buffer.MaxChunkSize + 1)
	chunkData(base)[0] = mem
	base.Grow(n) // moves the write mark only, as the chunk is large enough
	return &shadow{mem: mem, lo: uintptr(unsafe.Pointer(unsafe.SliceData(mem))), base: base}, nil
}

// view returns n bytes at the start of a slot.
func (s *shadow) view(slot uint32, n int) *buffer.View {
	v := s.base.Clone()
	v.TrimFront(int(slot) << slotShift)
	v.CapLength(n)
	return v
}

// find says where in the shadow p starts. p is not read, and is not empty.
func (s *shadow) find(p []byte) (slot uint32, off int, ok bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	if at < s.lo || at-s.lo >= uintptr(len(s.mem)) {
		return 0, 0, false
	}
	d := at - s.lo
	return uint32(d >> slotShift), int(d & (slotSize - 1)), true
}

// startsBehind says whether all of the shadow has higher addresses than p starts at.
func (s *shadow) startsBehind(p []byte) bool {
	return s.lo > uintptr(unsafe.Pointer(unsafe.SliceData(p)))
}

// close gives the address space back. No view may be left in the stack.
func (s *shadow) close() error {
	s.base.Release()
	return unix.Munmap(s.mem)
}

// chunkData returns the data field of a view's chunk. The view was made by buffer.NewView and is not empty of chunk;
// errLayout is nil, so both offsets were found by reflection on the same types.
func chunkData(v *buffer.View) *[1][]byte {
	chunk := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(v), layout.chunk))
	return (*[1][]byte)(unsafe.Add(chunk, layout.data))
}

var (
	layout    struct{ chunk, data uintptr }
	errLayout = initShadow()
)

func initShadow() error {
	view := reflect.TypeFor[buffer.View]()
	chunk, ok := view.FieldByName("chunk")
	if !ok || chunk.Type.Kind() != reflect.Pointer || chunk.Type.Elem().Kind() != reflect.Struct {
		return errors.New("gvisor's buffer.View has no chunk: vnic needs the gvisor of its go.mod")
	}
	data, ok := chunk.Type.Elem().FieldByName("data")
	if !ok || data.Type != reflect.TypeFor[[]byte]() {
		return errors.New("gvisor's buffer.chunk has no data: vnic needs the gvisor of its go.mod")
	}
	layout.chunk, layout.data = chunk.Offset, data.Offset
	// The proof by behaviour: a view over memory of ours shows its bytes, at its address.
	v := buffer.NewView(buffer.MaxChunkSize + 1)
	ours := make([]byte, buffer.MaxChunkSize+2)
	ours[0], ours[1], ours[2] = 1, 2, 3
	chunkData(v)[0] = ours
	v.Grow(len(ours))
	w := v.Clone()
	w.TrimFront(1)
	w.CapLength(2)
	got := w.AsSlice()
	same := len(got) == 2 && got[0] == 2 && got[1] == 3 && &got[0] == &ours[1]
	w.Release()
	v.Release()
	if !same {
		return errors.New("gvisor's buffer.View does not show its chunk: vnic needs the gvisor of its go.mod")
	}
	return nil
}
