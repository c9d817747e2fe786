package virtio_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// Invariant: nic/virtio: Memory missing in a new memory table is no longer written, and is
// unmapped.
func TestTableReplacedUnderTraffic(t *testing.T) {
	const (
		gpa   = 1 << 38
		size  = 1 << 20
		posts = 32
		buf   = 16 << 10
	)
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, table: true, patience: patient})
	b := w.B
	ram := vhostuser.MemRegion{FD: b.FD, GPA: 0, User: rawUser, Size: rawMem}
	old := memfd(t, "replaced-0", size)
	show := func(fd int) {
		b.OK(b.front.SetMemTable([]vhostuser.MemRegion{ram, {FD: fd, GPA: gpa, User: rawUser + gpa, Size: size}}))
	}
	show(old)

	// A sends to B, whose buffers lie in the second region of show, and B sends payload from that region.
	var got [2]atomic.Uint64
	var stop [2]chan struct{} // of the goroutines that send, and of the goroutines that receive
	var flows [2]sync.WaitGroup
	for i := range stop {
		stop[i] = make(chan struct{})
	}
	flow := func(n *atomic.Uint64, from, to *suiteGuest, payload uint64, post func(cookie uint32)) {
		for i := range uint32(posts) {
			post(i)
		}
		to.publish(0)
		f := tcp(from, to, 3000)
		addr, mem := from.Alloc(12 + len(f.Header))
		copy(mem[12:], f.Header)
		bufs := []virtq.Buf{{Addr: addr, Len: uint32(len(mem))}, {Addr: payload, Len: 3000}}
		for i, run := range []func([]virtq.Used){
			func(used []virtq.Used) {
				from.OK(from.rings[1].Add(bufs, nil, 0))
				from.publish(1)
				from.poll(1, used)
			},
			func(used []virtq.Used) {
				k, err := to.rings[0].Poll(used)
				to.OK(err)
				for _, u := range used[:k] {
					post(u.Cookie)
				}
				to.publish(0)
				if n.Add(uint64(k)); k == 0 {
					runtime.Gosched()
				}
			},
		} {
			flows[i].Go(func() {
				var used [rawRing]virtq.Used
				for {
					select {
					case <-stop[i]:
						return
					default:
						run(used[:])
					}
				}
			})
		}
	}
	aBuf, _ := w.A.Alloc(posts * buf)
	flow(&got[0], w.A, w.B, aBuf, func(i uint32) {
		b.OK(b.rings[0].Add(nil, []virtq.Buf{{Addr: gpa + uint64(i)*buf, Len: buf}}, i))
	})
	flow(&got[1], w.B, w.A, gpa+size/2, func(i uint32) {
		w.A.OK(w.A.rings[0].Add(nil, []virtq.Buf{{Addr: aBuf + uint64(i)*buf, Len: buf}}, i))
	})
	onward := func() {
		for i := range got {
			for before := got[i].Load(); got[i].Load() < before+4*posts; {
				runtime.Gosched()
			}
		}
	}
	blank := bytes.Repeat([]byte{poison}, size)
	now := make([]byte, size)
	for round := range 10 {
		onward()
		name := fmt.Sprint("replaced-", round+1)
		next := memfd(t, name, size)
		show(next)
		testkit.Equal(t, "mapped", mapped(t, fmt.Sprint("replaced-", round)), "")
		_, err := unix.Pwrite(old, blank, 0)
		b.OK(err)
		onward()
		_, err = unix.Pread(old, now, 0)
		b.OK(err)
		if !bytes.Equal(now, blank) {
			t.Errorf("round %d: the old memory was written", round)
		}
		_, err = unix.Pread(next, now, 0)
		b.OK(err)
		if !bytes.Contains(now[:buf], w.B.mac[:]) {
			t.Errorf("round %d: no frame in the new memory", round)
		}
		_ = unix.Close(old)
		old = next
	}
	for i := range stop {
		close(stop[i])
		flows[i].Wait()
	}
	_ = unix.Close(old)
	if len(b.dev.Errors()) != 0 || len(w.A.dev.Errors()) != 0 {
		t.Errorf("errors: %v, %v", w.A.dev.Errors(), b.dev.Errors())
	}
}

// A new table replaces all of the guest's memory, rings included, by other memory.
//
// Invariant: nic/virtio: Memory missing in a new memory table is no longer written, and is
// unmapped.
func TestRingsReplacedByTable(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, table: true})
	w.Moves(t)
	b := w.B
	next := memfd(t, "rawguest-next", rawMem)
	_, err := unix.Pwrite(next, b.RAM, 0)
	b.OK(err)
	b.OK(b.front.SetMemTable([]vhostuser.MemRegion{{FD: next, GPA: 0, User: rawUser, Size: rawMem}}))
	// The test's own mapping stays at the same address: the rings keep pointers.
	_, err = unix.MmapPtr(next, 0, unsafe.Pointer(&b.RAM[0]), rawMem, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED)
	b.OK(err)
	old := b.FD // the test's own descriptor of the old memory
	blank := bytes.Repeat([]byte{poison}, rawMem)
	_, err = unix.Pwrite(old, blank, 0)
	b.OK(err)
	w.Moves(t)
	w.Moves(t)
	now := make([]byte, rawMem)
	_, err = unix.Pread(old, now, 0)
	b.OK(err)
	if !bytes.Equal(now, blank) {
		t.Error("the old memory was written")
	}
	_ = unix.Close(next)
}

func memfd(t testing.TB, name string, size int64) int {
	t.Helper()
	fd := testkit.Must(unix.MemfdCreate(name, unix.MFD_CLOEXEC))(t)
	testkit.OK(t, unix.Ftruncate(fd, size))
	return fd
}

func mapped(t *testing.T, memfd string) string {
	t.Helper()
	maps := testkit.Must(os.ReadFile("/proc/self/maps"))(t)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:"+memfd+" ") {
			return line
		}
	}
	return ""
}
