package kernel

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

// Where there is no /dev/udmabuf that is what is said, and nothing is left; in guests kerneltest uses it.
func TestUDMABuf(t *testing.T) {
	for _, size := range []uint64{0, 100, 1 << 62} {
		_, err := NewUDMABuf(UDMABufOptions{Size: size, Node: -1})
		is(t, "size", err, syscall.EINVAL)
	}
	u, err := NewUDMABuf(UDMABufOptions{Size: 1 << 20, Node: -1})
	if _, serr := os.Stat("/dev/udmabuf"); serr != nil {
		is(t, "without the device", err, syscall.ENOENT)
		return
	}
	testkit.OK(t, err)
	defer u.Close()
	_, _, err = u.Export(1, 0, 4096)
	is(t, "gpu 1", err, syscall.ENODEV)
	_, _, err = u.Export(0, 1<<20, 4096)
	is(t, "outside", err, syscall.EINVAL)
	fd, _, err := u.Export(0, 4096, 8192)
	testkit.OK(t, err)
	defer unix.Close(fd)
	n, err := dmabufRefs(fd)
	testkit.OK(t, err)
	other, err := unix.Dup(fd)
	testkit.OK(t, err)
	if m, err := dmabufRefs(fd); m != n+1 || err != nil {
		t.Errorf("%d references, with another %d, %v", n, m, err)
	}
	unix.Close(other)
	if m, err := dmabufRefs(fd); m != n || err != nil {
		t.Errorf("%d references, then %d, %v", n, m, err)
	}
}

func TestOnlyADMABufHasReferences(t *testing.T) {
	f, err := os.Open("/dev/null")
	testkit.OK(t, err)
	defer f.Close()
	_, err = dmabufRefs(int(f.Fd()))
	is(t, "/dev/null", err, syscall.EINVAL)
	_, err = dmabufRefs(1 << 20)
	is(t, "no descriptor", err, os.ErrNotExist)
	b, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	testkit.OK(t, err)
	defer unix.Munmap(b)
	for _, node := range []int{-1, 64} {
		is(t, "node", bindToNode(b, node), syscall.EINVAL)
	}
	if err := bindToNode(b, 0); err != nil && !errors.Is(err, syscall.ENOSYS) {
		t.Error(err)
	}
	is(t, "a node that is not there", bindToNode(b, 63), syscall.EINVAL)
}

// What the kernel of this machine says of its loopback interface, by all the ways that Open and Stats go.
func TestOpenOnARealInterface(t *testing.T) {
	lo := loopback(t)
	d, err := Open(Options{Interface: lo.Name})
	testkit.OK(t, err)
	if _, err := d.ethtool.getFeature(lo.Index, ntupleFeature); err != nil {
		t.Error(err)
	}
	if _, err := linkCounters(lo.Index); err != nil {
		t.Error(err)
	}
	if _, err := d.Register(0, 0, 4096); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("register without an exporter: %v", err)
	}
	c, _ := pair(t, d)
	if _, err := c.SendDevmem(1, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("send: %v", err)
	}
	if err := d.SetRSS(1); err == nil {
		t.Error("the loopback has an rss table")
	}
	d.Stats()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open(Options{Interface: "no-such-interface"}); err == nil {
		t.Error("opened what is not there")
	}
}
