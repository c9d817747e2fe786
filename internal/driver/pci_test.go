package driver

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/hugemem"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/virtionet"
)

func TestVirtioCapabilities(t *testing.T) {
	all := []pciCap{
		{kind: capCommon, bar: 4, off: 0, length: 56}, {kind: capISR, bar: 4, off: 0x1000, length: 1},
		{kind: capDevice, bar: 2, off: 0x2000, length: 20}, {kind: capNotify, bar: 4, off: 0x3000, length: 64, multiplier: 4},
	}
	for _, c := range []struct {
		name string
		caps []pciCap
		edit func(b []byte)
		ok   bool
	}{
		{"all", all, nil, true},
		{"the first of a kind counts", append(all, pciCap{kind: capCommon, bar: 1, length: 1}), nil, true},
		{"none", nil, nil, false},
		{"no notify", all[:3], nil, false},
		{"no list", all, func(b []byte) { b[pciStatus] = 0 }, false},
		{"a loop", all[:1], func(b []byte) { b[0x51] = 0x50 }, false},
		{"a link to the end", all, func(b []byte) { b[0x41] = 0xfc }, false},
		{"a link to the header", all, func(b []byte) { b[0x41] = 0x10 }, false},
		{"BAR 6", all, func(b []byte) { b[0x54] = 6 }, false},
		{"short notify", all, func(b []byte) { b[0x50+3*0x14+2] = capLen }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := [pciConfigLen]byte([]byte(pciSpace(c.caps...)))
			if c.edit != nil {
				c.edit(b[:])
			}
			got, err := virtioCaps(&b)
			if (err == nil) != c.ok {
				t.Fatalf("%v", err)
			}
			if c.ok && (got[capCommon] != virtioCap{4, 0, 56, 0} || got[capNotify] != virtioCap{4, 0x3000, 64, 4} ||
				got[capDevice].bar != 2) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func FuzzVirtioCaps(f *testing.F) {
	f.Add([]byte(pciSpace(pciCap{kind: capCommon, length: 1}, pciCap{kind: capNotify, length: 1})))
	f.Fuzz(func(t *testing.T, in []byte) {
		var b [pciConfigLen]byte
		copy(b[:], in)
		caps, err := virtioCaps(&b)
		for _, c := range caps {
			if err == nil && c.bar >= numBARs {
				t.Errorf("BAR %d", c.bar)
			}
		}
	})
}

func TestGPUsAreIVSHMEMDevices(t *testing.T) {
	tree := newPCITree(t)
	tree.nic(testNIC)
	b := tree.gpu("0000:00:0b.0", 0x800000000, 1<<30)
	tree.gpu("0000:00:03.0", 0x380000000000, 64<<20)
	gpus, err := tree.root.gpus()
	testkit.OK(t, err)
	want := []GPUInfo{{0, 0x380000000000, 64 << 20, "0000:00:03.0"}, {1, 0x800000000, 1 << 30, "0000:00:0b.0"}}
	if len(gpus) != 2 || gpus[0] != want[0] || gpus[1] != want[1] {
		t.Errorf("%+v, want %+v", gpus, want)
	}
	if c := le.Uint16([]byte(tree.read(b + "config"))[pciCommand:]); c&commandMemory == 0 {
		t.Errorf("command register %#x: no memory decoding", c)
	}
	tree.write(b+"resource", resources(&pciBAR{0xfe010000, 0x100}, nil, nil))
	if _, err := tree.root.gpus(); err == nil {
		t.Error("a BAR without a place: no error")
	}
}

func fakeHugePages() *hugemem.Memory {
	next := uint64(1 << 32)
	return &hugemem.Memory{NewPage: func() ([]byte, uint64, error) {
		b, err := unix.Mmap(-1, 0, hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		next -= hugePage
		return b, next, err
	}}
}

const hugePage = hugemem.PageSize

func TestHugePage(t *testing.T) {
	tree := newPCITree(t)
	testkit.OK(t, os.Symlink("/proc", tree.path("proc")))
	h := tree.root.hugePages()
	defer h.Free()
	_, addr, err := h.AllocDMA(1)
	if err != nil {
		t.Skip(err)
	}
	if addr == 0 || addr%hugePage != 0 {
		t.Errorf("at %#x", addr)
	}
}

func TestHugeMemory(t *testing.T) {
	h := fakeHugePages()
	defer h.Free()
	type span struct{ from, to uint64 }
	var spans []span
	for _, n := range []int{1, PageSize, PageSize + 1, hugePage - 4*PageSize, hugePage, 100} {
		b, addr, err := h.AllocDMA(n)
		testkit.OK(t, err)
		m := memory{b, addr}
		s := span{m.addr, m.addr + uint64(len(m.b))}
		if len(m.b) < n || m.addr%PageSize != 0 || m.addr/hugePage != (s.to-1)/hugePage {
			t.Errorf("%d bytes: %#x, %d bytes", n, m.addr, len(m.b))
		}
		for _, o := range spans {
			if s.from < o.to && o.from < s.to {
				t.Errorf("%+v and %+v overlap", s, o)
			}
		}
		spans = append(spans, s)
	}
	if _, _, err := h.AllocDMA(hugePage + 1); err == nil {
		t.Error("more than a huge page: no error")
	}
}

func physical(tree *pciTree, addr uintptr) (uint64, error) {
	addrs, err := hugemem.Physical(tree.path("pagemap"), addr, 1, 1)
	if err != nil {
		return 0, err
	}
	return addrs[0], nil
}

func TestPhysicalErrors(t *testing.T) {
	tree := newPCITree(t)
	entries := make([]byte, 24)
	le.PutUint64(entries[8:], 1<<63)
	le.PutUint64(entries[16:], 1<<63|0x1234)
	tree.write("pagemap", string(entries))
	for i, want := range []error{nil, unix.EPERM} {
		if _, err := physical(tree, uintptr(i*os.Getpagesize())); err == nil || want != nil &&
			!errors.Is(err, want) {
			t.Errorf("page %d: %v", i, err)
		}
	}
	if got, err := physical(tree, uintptr(2*os.Getpagesize()+5)); err != nil ||
		got != 0x1234*uint64(os.Getpagesize())+5 {
		t.Errorf("%#x, %v", got, err)
	}
	if _, err := physical(tree, uintptr(3*os.Getpagesize())); err == nil {
		t.Error("past the end: no error")
	}
}

func TestPCIErrors(t *testing.T) {
	remove := func(path string) func(*pciTree, string) {
		return func(p *pciTree, dir string) { os.RemoveAll(p.path(strings.ReplaceAll(path, "DIR/", dir))) }
	}
	for _, c := range []struct {
		name string
		edit func(p *pciTree, dir string)
		addr string
		want string
	}{
		{"no sysfs", remove("sys"), "", "mount sysfs"},
		{"no device", remove("DIR/"), "", "-device virtio-net-pci"},
		{"another device", nil, "0000:00:09.0", "0000:00:02.0"},
		{"two devices", func(p *pciTree, _ string) { p.nic("0000:00:07.0") }, "", "name one"},
		{"no uio", remove("sys/bus/pci/drivers/uio_pci_generic"), "", "load uio.ko and uio_pci_generic.ko"},
		{"no unbind", remove("sys/bus/pci/drivers/virtio-pci/unbind"), "", "taking 0000:00:02.0 from virtio-pci"},
		{"no bind", remove("sys/bus/pci/drivers/uio_pci_generic/bind"), "", "binding 0000:00:02.0 to uio_pci_generic"},
		{"no INTx", remove("DIR/uio"), "", "has it an INTx pin?"},
		{"no node, no number", func(p *pciTree, dir string) {
			remove("dev/uio0")(p, dir)
			remove("DIR/uio/uio0/dev")(p,
				dir)
		}, "", "number of"},
		{"no config", remove("DIR/config"), "", "configuration space"},
		{"short config", func(p *pciTree, dir string) { p.write(dir+"config", p.read(dir + "config")[:64]) }, "",
			"only root"},
		{"no resource", remove("DIR/resource"), "", "places of the BARs"},
		{"bad resource", func(p *pciTree, dir string) { p.write(dir+"resource", "0x1 zz 0x2\n") }, "", "resource: line 1"},
		{"small BAR", func(p *pciTree, dir string) {
			p.write(dir+"resource", resources(nil, nil, nil, nil, &pciBAR{0xfe000000, 0x1000}))
		}, "", "virtio structure"},
		{"no BAR file", remove("DIR/resource4"), "", "BAR 4"},
		{"old device", func(p *pciTree, dir string) {
			p.bar(dir).write32(regDeviceFeature, uint32(virtionet.FMrgRxBuf))
		}, "", "lacks a feature"},
		{"no queues", func(p *pciTree, dir string) { p.bar(dir).write16(regNumQueues, 0) }, "", "no virtqueue 0"},
		{"notification far away", func(p *pciTree, dir string) {
			p.bar(dir).write16(regQueueNotifyOff, 0x400)
		}, "", "notification at"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.CheckFDs(t)
			tree := newPCITree(t)
			dir := tree.nic(testNIC)
			if c.edit != nil {
				c.edit(tree, dir)
			}
			n, err := openPCI(tree.root, fakeHugePages(), PCIOptions{Address: c.addr})
			if err == nil {
				n.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\ndoes not say %q", err, c.want)
			}
		})
	}
}

func (p *pciTree) bar(dir string) regs {
	b, err := pciDev{dir: p.path(dir)}.mapBAR(4, 0x4000)
	testkit.OK(p.t, err)
	p.t.Cleanup(func() { unix.Munmap(b) })
	return b
}
