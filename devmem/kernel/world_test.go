package kernel

import (
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// fakeGPU exports descriptors that are no dma-bufs.
type fakeGPU struct {
	size uint64
	mu   sync.Mutex
	open int
}

func (g *fakeGPU) Export(gpu int, off, size uint64) (int, func() error, error) {
	if gpu != 0 {
		return -1, nil, syscall.ENODEV
	}
	if off > g.size || size > g.size-off {
		return -1, nil, syscall.EINVAL
	}
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open++
	return fd, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open--
		return nil
	}, nil
}

// descriptors lists those that are open.
func descriptors(t *testing.T) (list []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	testkit.OK(t, err)
	for _, e := range entries {
		if l, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			list = append(list, l)
		}
	}
	return list
}

// testDevice is a device over a fake interface whose sockets are those of the loopback. Its
// transmit bindings are of host memory, so sends are plain MSG_ZEROCOPY.
type testDevice struct {
	*Device
	nic *fakeNIC
	gpu *fakeGPU
	mem []byte
}

const memSize = 4 << 20

func newTestDevice(t *testing.T) *testDevice {
	t.Helper()
	fds := descriptors(t)
	t.Cleanup(func() { // after all else
		if now := descriptors(t); len(now) != len(fds) && !t.Failed() {
			t.Errorf("descriptors before: %v\nafter: %v", fds, now)
		}
	})
	lo := loopback(t)
	mem, err := unix.Mmap(-1, 0, memSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	testkit.OK(t, err)
	td := &testDevice{nic: newFake(t, lo.Index), gpu: &fakeGPU{size: memSize}, mem: mem}
	td.Device, err = newDevice(Options{Interface: lo.Name, Buffers: td.gpu}, lo.Index, td.nic.dial, td.nic.ioctl)
	testkit.OK(t, err)
	td.refs, td.flush = td.nic.refs, func() error { return nil }
	t.Cleanup(func() {
		if err := td.Close(); err != nil {
			t.Error(err)
		}
		td.gpu.mu.Lock()
		defer td.gpu.mu.Unlock()
		if td.gpu.open != 0 || td.nic.conns != 0 {
			t.Errorf("%d dma-bufs and %d netlink sockets are left open", td.gpu.open, td.nic.conns)
		}
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	return td
}

func (td *testDevice) BindTX(b devmem.Buffer) (devmem.Binding, error) {
	x, err := td.Device.BindTX(b)
	if err != nil {
		return nil, err
	}
	tx := x.(*binding)
	tx.host, tx.base = true, uint64(uintptr(unsafe.Pointer(&td.mem[0])))+tx.buf.off
	return tx, nil
}
