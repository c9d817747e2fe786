package kernel

import (
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// fakeGPU exports descriptors that are not dma-bufs.
type fakeGPU struct {
	size uint64
	open atomic.Int64
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
	g.open.Add(1)
	return fd, func() error { g.open.Add(-1); return nil }, nil
}

// testDevice is a Device on the loopback interface, with a fakeNIC as the interface's configuration. Its transmit
// bindings are of host memory.
type testDevice struct {
	*Device
	nic *fakeNIC
	gpu *fakeGPU
	mem []byte
}

const memSize = 4 << 20

func newTestDevice(t *testing.T) *testDevice {
	t.Helper()
	testkit.CheckFDs(t)
	lo := loopback(t)
	mem, err := unix.Mmap(-1, 0, memSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	testkit.OK(t, err)
	td := &testDevice{nic: newFake(t, lo.Index), gpu: &fakeGPU{size: memSize}, mem: mem}
	td.Device, err = newDevice(Options{Interface: lo.Name, Buffers: td.gpu}, lo.Index, td.nic.dial, td.nic.ioctl)
	testkit.OK(t, err)
	td.refs, td.flush, td.kick = td.nic.refs, func() error { return nil }, func() (int, error) { return 0, nil }
	t.Cleanup(func() {
		wantErr(t, "Close", td.Close(), nil)
		testkit.Equal(t, "dma-bufs left open", td.gpu.open.Load(), 0)
		testkit.Equal(t, "netlink sockets left open", td.nic.conns, 0)
		wantErr(t, "Munmap", unix.Munmap(mem), nil)
	})
	return td
}

func (td *testDevice) BindTX(b devmem.Buffer) (devmem.Binding, error) {
	x, err := td.Device.BindTX(b)
	if err != nil {
		return nil, err
	}
	tx := x.(*binding)
	tx.host, tx.base = true, uint64(uintptr(unsafe.Pointer(&td.mem[0])))+tx.buf.Offset()
	return tx, nil
}
