package stack

import (
	"runtime"
	"runtime/debug"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"vnic.dev/vnic/internal/testkit"
)

func faults(f func()) (addr uintptr, ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if e, isFault := recover().(interface {
			runtime.Error
			Addr() uintptr
		}); isFault {
			addr, ok = e.Addr(), true
		}
	}()
	f()
	return 0, false
}

// Invariant: stack: Any read of the shadow faults.
func TestShadowFaultsWhenItIsRead(t *testing.T) {
	var sum byte
	for name, f := range map[string]func(*buffer.View){
		"read":     func(v *buffer.View) { sum += v.AsSlice()[0] },
		"last":     func(v *buffer.View) { sum += v.AsSlice()[v.Size()-1] },
		"copy":     func(v *buffer.View) { v.ToSlice() },
		"write":    func(v *buffer.View) { v.WriteAt([]byte{1}, 0) },
		"checksum": func(v *buffer.View) { b := buffer.MakeWithView(v.Clone()); b.Checksum(0) },
		"append": func(v *buffer.View) {
			b := buffer.MakeWithView(buffer.NewViewSize(3)) // has room for a byte of the payload
			b.Append(v.Clone())
		},
		"pull up": func(v *buffer.View) {
			b := buffer.MakeWithView(buffer.NewViewSize(3))
			w := buffer.MakeWithView(v.Clone())
			b.Merge(&w)
			b.PullUp(0, 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			// A panic leaves a buffer with wrong reference counts.
			s := testkit.Must(newShadow(4))(t)
			defer s.close()
			v := s.view(2, 1448)
			addr, ok := faults(func() { f(v) })
			if !ok || addr < s.lo || addr >= s.lo+uintptr(len(s.mem)) {
				t.Errorf("fault: %v, at %#x; shadow at %#x+%#x", ok, addr, s.lo, len(s.mem))
			}
		})
	}
}

// Invariant: stack: netstack carries the shadow without reading it, whatever a device delivers.
func TestShadowIsCarriedWithoutATouch(t *testing.T) {
	s := testkit.Must(newShadow(8))(t)
	defer s.close()
	if addr, ok := faults(func() {
		b := buffer.MakeWithView(buffer.NewViewWithData([]byte("headers")))
		for slot := range uint32(3) {
			w := buffer.MakeWithView(s.view(slot, 5000))
			b.Merge(&w)
		}
		c := b.Clone()
		b.TrimFront(10)
		c.Truncate(6000)
		for _, d := range []*buffer.Buffer{&b, &c} {
			d.Apply(func(v *buffer.View) { s.find(v.AsSlice()) })
			d.Release()
		}
	}); ok {
		t.Fatalf("fault at %#x", addr)
	}
}

func TestShadowFindsItsSlots(t *testing.T) {
	s := testkit.Must(newShadow(5))(t)
	defer s.close()
	for slot := range uint32(5) {
		for _, off := range []int{0, 1, 4096, slotSize - 2} {
			v := s.view(slot, slotSize)
			v.TrimFront(off)
			v.CapLength(2)
			gotSlot, gotOff, ok := s.find(v.AsSlice())
			if !ok || gotSlot != slot || gotOff != off || s.startsBehind(v.AsSlice()) {
				t.Errorf("slot %d+%d is found as %d+%d, %v", slot, off, gotSlot, gotOff, ok)
			}
			v.Release()
		}
	}
	if _, _, ok := s.find(make([]byte, 9)); ok {
		t.Error("a byte of the heap is found")
	}
}
