package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/virtionet"
)

// pciTree makes a file tree like sysfs. The virtio-net device that nic adds is like QEMU's, but its BAR 4 is a file:
// registers keep their last values, and selectors select nothing.
type pciTree struct {
	t    testing.TB
	root sysfs
}

const testNIC = "0000:00:02.0"

func newPCITree(t testing.TB) *pciTree {
	tree := &pciTree{t, sysfs(t.TempDir())}
	tree.write("sys/bus/pci/drivers/uio_pci_generic/bind", "")
	tree.write("sys/bus/pci/drivers/uio_pci_generic/new_id", "")
	tree.write("sys/bus/pci/drivers/virtio-pci/unbind", "")
	tree.device("0000:00:00.0", "0x8086", "0x29c0", pciSpace(), "")
	return tree
}

func (p *pciTree) path(elem ...string) string { return p.root.path(elem...) }

func (p *pciTree) write(path, text string) {
	p.t.Helper()
	path = p.path(path)
	testkit.OK(p.t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(p.t, os.WriteFile(path, []byte(text), 0o644))
}

func (p *pciTree) read(path string) string {
	p.t.Helper()
	b, err := os.ReadFile(p.path(path))
	testkit.OK(p.t, err)
	return string(b)
}

func (p *pciTree) device(addr, vendor, device, space, resource string) string {
	dir := "sys/bus/pci/devices/" + addr + "/"
	p.write(dir+"vendor", vendor+"\n")
	p.write(dir+"device", device+"\n")
	p.write(dir+"config", space)
	p.write(dir+"resource", resource)
	p.write(dir+"driver_override", "")
	return dir
}

func (p *pciTree) nic(addr string) (dir string) {
	dir = p.device(addr, "0x1af4", "0x1041", pciSpace(
		pciCap{kind: capCommon, bar: 4, off: 0, length: 0x1000},
		pciCap{kind: capISR, bar: 4, off: 0x1000, length: 0x1000},
		pciCap{kind: capDevice, bar: 4, off: 0x2000, length: 0x1000},
		pciCap{kind: capNotify, bar: 4, off: 0x3000, length: 0x1000, multiplier: 4},
		pciCap{kind: 5, bar: 0, off: 0, length: 0},
	), resources(nil, nil, nil, nil, &pciBAR{0xfe000000, 0x4000}))
	bar := regs(make([]byte, 0x4000))
	// The selector selects nothing, so these bits are also bits 32 to 63 of the features, where CSUM's bit is VERSION_1.
	bar.write32(regDeviceFeature, uint32(virtionet.FCsum|virtionet.FMAC|virtionet.FMrgRxBuf|virtionet.FGuestCsum))
	bar.write16(regNumQueues, 3)
	bar.write16(regQueueSize, 256)
	copy(bar[0x2000:], []byte{0x52, 0x54, 0, 1, 2, 3, 1, 0, 1, 0, 0xdc, 5})
	p.write(dir+"resource4", string(bar))
	testkit.OK(p.t, os.Symlink("../../drivers/virtio-pci", p.path(dir, "driver")))
	p.write(dir+"uio/uio0/dev", "248:0\n")
	p.write("dev/null", "")
	if err := unix.Mkfifo(p.path("dev/uio0"), 0o600); err != nil && err != unix.EEXIST {
		p.t.Fatal(err)
	}
	return dir
}

func (p *pciTree) gpu(pciAddr string, addr, size uint64) (dir string) {
	return p.device(pciAddr, "0x1af4", "0x1110", pciSpace(),
		resources(&pciBAR{0xfe010000, 0x100}, nil, &pciBAR{addr, size}))
}

func resources(bars ...*pciBAR) (s string) {
	for i := range 13 {
		var v [3]uint64
		if i < len(bars) && bars[i] != nil {
			v = [3]uint64{bars[i].addr, bars[i].addr + bars[i].size - 1, 0x14220c}
		}
		s += fmt.Sprintf("0x%016x 0x%016x 0x%016x\n", v[0], v[1], v[2])
	}
	return s
}

type pciCap struct {
	kind, bar   uint8
	off, length uint32
	multiplier  uint32
}

func pciSpace(caps ...pciCap) string {
	b := make([]byte, pciConfigLen)
	le.PutUint16(b[pciCommand:], 0x103)
	le.PutUint16(b[pciStatus:], statusCapList)
	b[pciCapabilities] = 0x40
	b[0x40] = 0x11
	next := &b[0x41]
	for i, c := range caps {
		pos := 0x50 + 0x14*i
		*next = byte(pos)
		next = &b[pos+1]
		b[pos], b[pos+2], b[pos+3], b[pos+4] = capVendor, capLen, c.kind, c.bar
		le.PutUint32(b[pos+8:], c.off)
		le.PutUint32(b[pos+12:], c.length)
		if c.kind == capNotify {
			b[pos+2] = capNotifyLen
			le.PutUint32(b[pos+16:], c.multiplier)
		}
	}
	return string(b)
}
