package stack

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
)

// Only this file of the package uses unsafe: it makes views for netstack over address space that cannot be read. A
// buffer.View has fields {read, write int; chunk *chunk}, and a chunk {chunkRefs; data []byte}. A chunk whose data has
// more than buffer.MaxChunkSize bytes is never pooled, so its data can be replaced by reserved address space.

const (
	slotShift = 16
	slotSize  = 1 << slotShift // bytes of a slot, enough for the payload of any frame
	junkSlot  = 0              // for payload that netstack gets only to drop it
)

// shadow is reserved, inaccessible address space that stands for received payload. The shadow queue's lock
// protects it; find and startsBehind need no lock.
type shadow struct {
	mem  []byte // PROT_NONE
	lo   uintptr
	base *buffer.View // all of mem
}

// newShadow reserves address space. slots is the number of slots, junkSlot included.
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
	base.Grow(n) // moves only the write mark, because the chunk is large enough
	return &shadow{mem: mem, lo: uintptr(unsafe.Pointer(unsafe.SliceData(mem))), base: base}, nil
}

func (s *shadow) view(slot uint32, n int) *buffer.View {
	v := s.base.Clone()
	v.TrimFront(int(slot) << slotShift)
	v.CapLength(n)
	return v
}

// find returns the slot in which p starts, and the offset of p in it, or false if p starts outside the shadow. It does
// not read p, which must not be empty.
func (s *shadow) find(p []byte) (slot uint32, off int, ok bool) {
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	if addr < s.lo || addr-s.lo >= uintptr(len(s.mem)) {
		return 0, 0, false
	}
	d := addr - s.lo
	return uint32(d >> slotShift), int(d & (slotSize - 1)), true
}

// startsBehind reports whether the shadow starts at a higher address than p.
func (s *shadow) startsBehind(p []byte) bool {
	return s.lo > uintptr(unsafe.Pointer(unsafe.SliceData(p)))
}

// close releases the address space. Netstack must have no view of it.
func (s *shadow) close() error {
	s.base.Release()
	return unix.Munmap(s.mem)
}

// chunkData returns a pointer to the data field of a view's chunk. v must come from buffer.NewView and have a chunk.
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
	v := buffer.NewView(buffer.MaxChunkSize + 1)
	mem := make([]byte, buffer.MaxChunkSize+2)
	mem[0], mem[1], mem[2] = 1, 2, 3
	chunkData(v)[0] = mem
	v.Grow(len(mem))
	w := v.Clone()
	w.TrimFront(1)
	w.CapLength(2)
	got := w.AsSlice()
	same := len(got) == 2 && got[0] == 2 && got[1] == 3 && &got[0] == &mem[1]
	w.Release()
	v.Release()
	if !same {
		return errors.New("gvisor's buffer.View does not show its chunk: vnic needs the gvisor of its go.mod")
	}
	return nil
}
