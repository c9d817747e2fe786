package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

// fake holds the directories that stand for a machine's /proc and /sys. newFake fills them with two sockets. Below
// the first are a GPU, and a switch with a NIC and another GPU; the port above that GPU redirects. Below the second
// is a NIC.
type fake struct {
	proc, sys string
}

func newFake(t *testing.T) *fake {
	dir := t.TempDir()
	f := &fake{dir + "/proc", dir + "/sys"}
	f.cpu(t, "GenuineIntel", 6, "")
	f.device(t, "pci0000:3a/0000:3a:00.0", 0x088000, 0x09a2, 0, nil)
	f.device(t, "pci0000:3a/0000:3a:01.0", 0x060400, 0x352a, 0, nil)
	f.device(t, "pci0000:3a/0000:3a:01.0/0000:3b:00.0", 0x060400, 0xc030, 0, nil) // upstream port
	below := "pci0000:3a/0000:3a:01.0/0000:3b:00.0/"
	f.device(t, below+"0000:3c:00.0", 0x060400, 0xc030, 0, config(0))
	f.device(t, below+"0000:3c:00.0/0000:3d:00.0", 0x020000, 0x1021, 0, nil)
	f.write(t, "bus/pci/devices/0000:3d:00.0/net/eth7/mtu", "1500")
	f.device(t, below+"0000:3c:01.0", 0x060400, 0xc030, 0, config(redirectACS))
	f.device(t, below+"0000:3c:01.0/0000:3e:00.0", 0x030200, 0x2330, 0, nil)
	f.device(t, below+"0000:3c:01.0/0000:3e:00.1", 0x040300, 0x2331, 0, nil) // audio
	f.device(t, "pci0000:3a/0000:3a:05.0", 0x060400, 0x352b, 0, config(0))
	f.device(t, "pci0000:3a/0000:3a:05.0/0000:5a:00.0", 0x120000, 0x2330, 0, nil)
	f.device(t, "pci0000:ba/0000:ba:00.0", 0x088000, 0x3c00, 1, nil)
	f.device(t, "pci0000:ba/0000:ba:01.0", 0x060400, 0x352a, 1, config(0))
	f.device(t, "pci0000:ba/0000:ba:01.0/0000:bb:00.0", 0x020000, 0x1021, 1, nil)
	return f
}

// config makes configuration space with Access Control Services as the second extended capability; their control
// register has the value control.
func config(control uint16) []byte {
	b := make([]byte, 4096)
	binary.LittleEndian.PutUint32(b[extendedAt:], 0x0001|1<<16|0x150<<20)
	binary.LittleEndian.PutUint32(b[0x150:], idACS|1<<16)
	binary.LittleEndian.PutUint16(b[0x150+controlACS:], control)
	return b
}

func (f *fake) write(t *testing.T, path, text string) {
	path = filepath.Join(f.sys, path)
	testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(t, os.WriteFile(path, []byte(text), 0o644))
}

func (f *fake) cpu(t *testing.T, vendor string, family int, flags string) {
	testkit.OK(t, os.MkdirAll(f.proc, 0o755))
	text := fmt.Sprintf("processor\t: 0\nvendor_id\t: %s\ncpu family\t: %d\nflags\t\t: fpu %s\n\n", vendor, family, flags)
	testkit.OK(t, os.WriteFile(f.proc+"/cpuinfo", []byte(text), 0o644))
}

// device adds a device below f.sys/devices, and its link in bus/pci/devices. With nil space, a bridge gets
// configuration space in which nothing redirects, and another device gets 64 zero bytes.
func (f *fake) device(t *testing.T, place string, class, id uint32, node int, space []byte) {
	dir := filepath.Join(f.sys, "devices", place)
	name := filepath.Base(place)
	if space == nil {
		space = make([]byte, 64)
		if class>>8 == classBridge {
			space = config(0)
		}
	}
	for file, text := range map[string]string{"class": fmt.Sprintf("0x%06x", class), "vendor": "0x8086",
		"device": fmt.Sprintf("0x%04x", id), "subsystem_vendor": "0x0000", "subsystem_device": "0x0000", "revision": "0x00",
		"numa_node": fmt.Sprint(node), "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16",
		"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "config": string(space)} {
		testkit.OK(t, os.MkdirAll(dir, 0o755))
		testkit.OK(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	link := filepath.Join(f.sys, "bus/pci/devices", name)
	testkit.OK(t, os.MkdirAll(filepath.Dir(link), 0o755))
	testkit.OK(t, os.Symlink("../../../devices/"+place, link))
}

func TestTreeOfAMachine(t *testing.T) {
	f := newFake(t)
	m, err := Read(f.proc, f.sys)
	testkit.OK(t, err)
	testkit.Equal(t, "hypervisor", m.Hypervisor, "")
	if !m.ACSKnown || len(m.NICs) != 2 || len(m.GPUs) != 2 || m.NICs[0].Interface != "eth7" {
		t.Errorf("%+v", m)
	}
	testkit.Equal(t, "place", m.Tree.Place("0000:3e:00.0"), "pci0000:3a/0000:3b:00.0/0000:3e:00.0")
	for _, c := range []struct {
		nic, gpu string
		want     pcie.PathKind
		distance pcie.Distance
		reason   string
	}{
		{"0000:3d:00.0", "0000:3e:00.0", pcie.HostBridge, pcie.PIX, "ACS redirects at the port above 0000:3e:00.0"},
		{"0000:3d:00.0", "0000:5a:00.0", pcie.HostBridge, pcie.PHB, "host bridge of pci0000:3a forwards"},
		{"0000:bb:00.0", "0000:5a:00.0", pcie.NoPath, pcie.SYS, "the host bridge of pci0000:ba forwards nothing"},
	} {
		p := m.Tree.Path(c.nic, c.gpu)
		if p.Kind != c.want || p.Distance != c.distance || !strings.Contains(p.Reason, c.reason) {
			t.Errorf("%s to %s: %+v", c.nic, c.gpu, p)
		}
	}
	for _, n := range m.Tree.Nodes() {
		if n.Kind != pcie.Socket && n.Link != (pcie.Link{Gen: 5, Width: 16}) {
			t.Errorf("%+v", n)
		}
	}
}

// The device that represents a host bridge may be a root port, if it is the first device on its bus.
func TestHostBridgeMayBeItsFirstPort(t *testing.T) {
	f := newFake(t)
	f.device(t, "pci0000:17/0000:17:02.0", 0x060400, 0x2032, 0, config(0))
	f.device(t, "pci0000:17/0000:17:02.0/0000:18:00.0", 0x020000, 0x1021, 0, nil)
	f.device(t, "pci0000:17/0000:17:03.0", 0x060400, 0x2033, 0, config(0))
	f.device(t, "pci0000:17/0000:17:03.0/0000:19:00.0", 0x030200, 0x2330, 0, nil)
	f.device(t, "pci0000:99/0000:99:02.0", 0x088000, 0x2032, 0, nil) // no root port, not in slot 0
	f.device(t, "pci0000:99/0000:99:03.0", 0x060400, 0x2033, 0, config(0))
	f.device(t, "pci0000:99/0000:99:03.0/0000:9a:00.0", 0x030200, 0x2330, 0, nil)
	m := testkit.Must(Read(f.proc, f.sys))(t)
	testkit.Equal(t, "path", m.Tree.Path("0000:18:00.0", "0000:19:00.0").Kind, pcie.HostBridge)
	testkit.Equal(t, "path to another", m.Tree.Path("0000:18:00.0", "0000:9a:00.0").Kind, pcie.NoPath)
}

func TestCPUDecides(t *testing.T) {
	f := newFake(t)
	f.cpu(t, "AuthenticAMD", 0x17, "hypervisor")
	m, err := Read(f.proc, f.sys)
	testkit.OK(t, err)
	testkit.Equal(t, "hypervisor", m.Hypervisor, "a hypervisor")
	testkit.Equal(t, "path", m.Tree.Path("0000:bb:00.0", "0000:5a:00.0").Kind, pcie.HostBridge)
	f.write(t, "class/dmi/id/sys_vendor", "QEMU\n")
	m, err = Read(f.proc, f.sys)
	testkit.OK(t, err)
	testkit.Equal(t, "hypervisor", m.Hypervisor, "QEMU")
}

func TestACSIsRootsToKnow(t *testing.T) {
	f := newFake(t)
	f.write(t, "bus/pci/devices/0000:3c:01.0/config", string(make([]byte, 64)))
	m, err := Read(f.proc, f.sys)
	testkit.OK(t, err)
	testkit.Equal(t, "ACS known", m.ACSKnown, false)
	testkit.Equal(t, "path", m.Tree.Path("0000:3d:00.0", "0000:3e:00.0").Kind, pcie.Bus)
}

// This machine's tree can be read if it has PCI.
func TestOwnTreeIsRead(t *testing.T) {
	m, err := Read("/proc", "/sys")
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat("/sys/bus/pci/devices"); err == nil {
			t.Error("this machine has PCI")
		}
		return
	}
	testkit.OK(t, err)
	for _, n := range m.NICs {
		for _, g := range m.GPUs {
			t.Log(n.Name, g.Name, m.Tree.Path(n.Name, g.Name))
		}
	}
}

func TestNoPCIIsAnError(t *testing.T) {
	f := newFake(t)
	testkit.ErrorIs(t, testkit.Err(Read(f.proc, t.TempDir())), fs.ErrNotExist)
}

// A list of capabilities that leads back to itself ends.
func TestCircularListOfCapabilities(t *testing.T) {
	b := make([]byte, 4096)
	binary.LittleEndian.PutUint32(b[0x100:], 0x200<<20|1)
	binary.LittleEndian.PutUint32(b[0x200:], 0x100<<20|2)
	testkit.Equal(t, "ACS redirects", acsRedirects(b), false)
}

func FuzzConfigurationSpace(f *testing.F) {
	f.Add(config(redirectACS))
	f.Add(config(0))
	f.Add(make([]byte, 300))
	f.Fuzz(func(_ *testing.T, b []byte) { acsRedirects(b) })
}
