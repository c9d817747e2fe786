package kernel

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

// NewUDMABuf returns ENOENT if there is no /dev/udmabuf; the rest of the test then does not run.
func TestUDMABuf(t *testing.T) {
	for _, size := range []uint64{0, 100, 1 << 62} {
		wantErr(t, "size", errOf(NewUDMABuf(UDMABufOptions{Size: size, Node: -1})), syscall.EINVAL)
	}
	u, err := NewUDMABuf(UDMABufOptions{Size: 1 << 20, Node: -1})
	if _, serr := os.Stat("/dev/udmabuf"); serr != nil {
		wantErr(t, "without the device", err, syscall.ENOENT)
		return
	}
	testkit.OK(t, err)
	defer u.Close()
	wantErr(t, "gpu 1", errOf(u.Export(1, 0, 4096)), syscall.ENODEV)
	wantErr(t, "outside", errOf(u.Export(0, 1<<20, 4096)), syscall.EINVAL)
	fd, _, err := u.Export(0, 4096, 8192)
	testkit.OK(t, err)
	defer unix.Close(fd)
	n := testkit.Must(dmabufRefs(fd))(t)
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
	f := testkit.Must(os.Open("/dev/null"))(t)
	defer f.Close()
	wantErr(t, "/dev/null", errOf(dmabufRefs(int(f.Fd()))), syscall.EINVAL)
	wantErr(t, "no descriptor", errOf(dmabufRefs(1<<20)), os.ErrNotExist)
	b, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	testkit.OK(t, err)
	defer unix.Munmap(b)
	for _, node := range []int{-1, 64} {
		wantErr(t, "node", bindToNode(b, node), syscall.EINVAL)
	}
	if err := bindToNode(b, 0); err != nil && !errors.Is(err, syscall.ENOSYS) {
		t.Error(err)
	}
	wantErr(t, "a node that is not there", bindToNode(b, 63), syscall.EINVAL)
}

// Open opens the loopback interface, which has no RSS table; without an exporter Register returns ENODEV.
func TestOpenOnARealInterface(t *testing.T) {
	lo := loopback(t)
	d, err := Open(Options{Interface: lo.Name})
	testkit.OK(t, err)
	wantErr(t, "getFeature", errOf(d.ethtool.getFeature(lo.Index, ntupleFeature)), nil)
	wantErr(t, "LinkByIndex", errOf(netlink.LinkByIndex(lo.Index)), nil)
	wantErr(t, "register without an exporter", errOf(d.Register(0, 0, 4096)), syscall.ENODEV)
	c, _ := pair(t, d)
	wantErr(t, "send", errOf(c.SendDevmem(1, nil)), syscall.EINVAL)
	if err := d.SetRSS(1); err == nil {
		t.Error("the loopback has an rss table")
	}
	d.Stats()
	wantErr(t, "Close", d.Close(), nil)
	if _, err := Open(Options{Interface: "no-such-interface"}); err == nil {
		t.Error("opened what is not there")
	}
}
