package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/sysfs"

	"vnic.dev/vnic/internal/testkit"
)

// reference reads the devices with package procfs.
func reference(sys string) (map[string]*device, error) {
	s, err := sysfs.NewFS(sys)
	if err != nil {
		return nil, err
	}
	list, err := s.PciDevices()
	if err != nil {
		return nil, err
	}
	locate := func(l sysfs.PciDeviceLocation) location { return location{l.Segment, l.Bus, l.Device, l.Function} }
	all := make(map[string]*device)
	for _, p := range list {
		d := &device{loc: locate(p.Location), class: p.Class, vendor: p.Vendor, device: p.Device, numa: -1}
		d.name = d.loc.String()
		if p.ParentLocation != nil {
			up := locate(*p.ParentLocation)
			d.up = &up
		}
		if p.NumaNode != nil {
			d.numa = int(*p.NumaNode)
		}
		if p.CurrentLinkSpeed != nil {
			d.speed = *p.CurrentLinkSpeed
		}
		if p.CurrentLinkWidth != nil {
			d.width = int64(*p.CurrentLinkWidth)
		}
		all[d.name] = d
	}
	return all, nil
}

func compareDevices(t *testing.T, what, sys string) (failed bool) {
	t.Helper()
	want, err1 := reference(sys)
	got, err2 := readDevices(sys)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(device{}, location{})); d != "" {
		t.Errorf("%s: procfs reads (-), we read (+):\n%s", what, d)
	}
	if (err1 == nil) != (err2 == nil) || errors.Is(err1, fs.ErrNotExist) != errors.Is(err2, fs.ErrNotExist) {
		t.Errorf("%s: procfs reads %v, vnic reads %v", what, err1, err2)
	}
	return err2 != nil
}

// readDevices and procfs read the same devices, and refuse the same values.
func TestDevicesAreThoseOfProcfs(t *testing.T) {
	f := newFake(t)
	f.device(t, "pci10000:e0/10000:e0:06.0", 0x060400, 0x352a, 0, nil) // a domain with five digits (VMD)
	f.device(t, "pci10000:e0/10000:e0:06.0/10000:e1:1f.7", 0x010802, 0x352a, -1, nil)
	if compareDevices(t, "the whole tree", f.sys) {
		t.Error("it cannot be read")
	}
	if _, err := os.Stat("/sys/bus/pci/devices"); err == nil {
		compareDevices(t, "this machine", "/sys")
	}
	const name = "0000:3d:00.0"
	f = &fake{sys: t.TempDir()}
	f.device(t, "pci0000:3d/"+name, 0x020000, 0x1021, 0, nil)
	values := []string{"", "\n", "0x8086\n", "0X1", " 7 ", "017", "0b1", "1_0", "-1", "-2147483649", "2147483647",
		"2147483648", "0xffffffff", "99999999999999999999", "16", "255", "x", "1 2", "\x00", "Unknown", "Unknown speed\n",
		"unknown", "8.0 GT/s PCIe\n", "8.0  GT/s PCIe", "8 GT/s", "x GT/s PCIe", "GT/s PCIe", "1e1 GT/s PCIe",
		"inf GT/s PCIe", " 2.5 GT/s PCIe",
		strings.Repeat("0", 127) + "1", strings.Repeat("0", 128) + "1", strings.Repeat(" ", 200)}
	wrong := 0
	for _, file := range []string{"class", "vendor", "device", "current_link_speed", "current_link_width", "numa_node"} {
		path := filepath.Join(f.sys, "bus/pci/devices", name, file)
		was := testkit.Must(os.ReadFile(path))(t)
		for _, v := range values {
			testkit.OK(t, os.WriteFile(path, []byte(v), 0o644))
			if compareDevices(t, fmt.Sprintf("%s %q", file, v), f.sys) {
				wrong++
				if _, err := readDevices(f.sys); !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s %q: %v", file, v, err)
				}
			}
		}
		testkit.OK(t, os.Remove(path))
		optional := !slices.Contains([]string{"class", "vendor", "device"}, file)
		testkit.Equal(t, file+": its absence is an error", compareDevices(t, "without "+file, f.sys), !optional)
		testkit.OK(t, os.Mkdir(path, 0o755))
		testkit.Equal(t, file+": a directory is an error", compareDevices(t, "a directory "+file, f.sys), true)
		testkit.OK(t, os.Remove(path))
		testkit.OK(t, os.WriteFile(path, was, 0o644))
	}
	if wrong < 50 {
		t.Errorf("%d values are wrong", wrong)
	}
}

// readDevices and procfs read devices at the same places in sysfs, and refuse the same places.
func TestPlacesAreThoseOfProcfs(t *testing.T) {
	for _, c := range []struct {
		place string
		wrong bool
	}{
		{"pci0000:4a/0000:4a:00.0", false},
		{"pci0000:3a/ffff:ff:1f.7", false},
		{"pci0000:3a/0000:3a:00.0/0000:4b:00.0", false},
		{"platform/0000:4b:00.0", true},
		{"pci0000:3a/virtio0", true},
		{"pci0000:3a/0000:3a:00", true},
		{"pci0000:3a/0000:3a:00.0.0", true},
		{"pci0000:3a/3a:00.0", true},
		{"pci0000:3a/0000:0000:3a:00.0", true},
		{"pci0000:3a/000g:3a:00.0", true},
		{"pci0000:3a/0000::00.0", true},
		{"pci0000:3a/0000:3a:x.0", true},
		{"pci0000:3a/0000:3a:00.", true},
		{"pci0000:3a/fffffffff:3a:00.0", true},
	} {
		f := &fake{sys: t.TempDir()}
		f.device(t, c.place, 0x020000, 0x1021, 0, nil)
		testkit.Equal(t, c.place, compareDevices(t, c.place, f.sys), c.wrong)
	}
	f := &fake{sys: t.TempDir()}
	f.write(t, "bus/pci/devices/0000:00:00.0/class", "0x020000")
	testkit.Equal(t, "no link", compareDevices(t, "no link", f.sys), true)
}

// readProcessor reads the vendor, family and flags that procfs reads for the first processor, and fails if procfs
// fails. They are compared on amd64 only.
func TestProcessorIsThatOfProcfs(t *testing.T) {
	const first = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu hypervisor \n"
	texts := map[string]bool{ // contents of cpuinfo, and whether reading them fails
		first: false,
		first + "\nprocessor\t: 1\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu\n": false,
		"\n \n" + first: false,
		"processor\t: 0\nvendor\t: x\npower management:\nbugs\t\t:\nnothing\n": false,
		"":                                    true,
		"vendor_id\t: AuthenticAMD\n" + first: true,
		"processor\n" + first:                 true,
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil && len(b) > 0 {
		texts[string(b)] = false
	}
	for text, wrong := range texts {
		dir := t.TempDir()
		testkit.OK(t, os.WriteFile(dir+"/cpuinfo", []byte(text), 0o644))
		got, err := readProcessor(dir)
		testkit.Equal(t, fmt.Sprintf("error of %q", text), err != nil, wrong)
		if runtime.GOARCH != "amd64" {
			continue // procfs may expect other lines there
		}
		p := testkit.Must(procfs.NewFS(dir))(t)
		list, err := p.CPUInfo()
		switch {
		case (err != nil) != wrong:
			t.Errorf("%q: procfs says %v", text, err)
		case !wrong && (got.vendor != list[0].VendorID || got.family != list[0].CPUFamily ||
			!slices.Equal(got.flags, list[0].Flags)):
			t.Errorf("%q: %+v, procfs reads %+v", text, got, list[0])
		}
	}
	testkit.ErrorIs(t, testkit.Err(readProcessor(t.TempDir())), fs.ErrNotExist)
}

func TestMountPointIsADirectory(t *testing.T) {
	f := newFake(t)
	file := f.proc + "/cpuinfo"
	for _, c := range []struct{ proc, sys, want string }{
		{file, f.sys, fmt.Sprintf("mount point %q is not a directory", file)},
		{f.proc, file, fmt.Sprintf("mount point %q is not a directory", file)},
		{f.proc + "/none", f.sys, "could not read "},
		{f.proc, f.sys + "/none", "could not read "},
	} {
		if _, err := Read(c.proc, c.sys); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s, %s: %v", c.proc, c.sys, err)
		}
	}
}
