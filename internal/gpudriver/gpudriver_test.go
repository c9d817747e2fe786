package gpudriver

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"

// resource returns the contents of the file resource of a PCI device in which BAR 2 has this line (Linux:
// drivers/pci/pci-sysfs.c, resource_show).
func resource(line string) string {
	return "0x00000000fea00000 0x00000000fea000ff 0x0000000000040200\n" + none + line + strings.Repeat(none, 10)
}

func device(t *testing.T, class, name, pci, resource string) (dir string) {
	t.Helper()
	root := filepath.Dir(class)
	dir = filepath.Join(root, "devices", "pci0000:00", pci)
	misc := filepath.Join(dir, "misc", name)
	testkit.OK(t, os.MkdirAll(misc, 0o755))
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "resource"), []byte(resource), 0o644))
	testkit.OK(t, os.Symlink(filepath.Join("..", "..", "..", pci), filepath.Join(misc, "device")))
	testkit.OK(t, os.MkdirAll(class, 0o755))
	testkit.OK(t, os.Symlink(misc, filepath.Join(class, name)))
	return dir
}

// Invariant: gpudriver: GPUs are found by their driver's devices, with the place of their memory; others are none.
func TestGPUsAreFoundByTheirDriversDevices(t *testing.T) {
	class := filepath.Join(t.TempDir(), "misc")
	device(t, class, "vnicgpu1", "0000:02:00.0", resource("0x0000380010000000 0x000038001fffffff 0x000000000014220c\n"))
	device(t, class, "vnicgpu0", "0000:05:00.0", resource("0x00000000c0000000 0x00000000c3ffffff 0x000000000014220c\n"))
	device(t, class, "hw_random", "0000:01:00.0", "")
	list := testkit.Must(list(class))(t)
	want := []GPU{
		{Path: "/dev/vnicgpu0", PCI: "0000:05:00.0", Addr: 0xc000_0000, Size: 64 << 20},
		{Path: "/dev/vnicgpu1", PCI: "0000:02:00.0", Addr: 0x3800_1000_0000, Size: 256 << 20},
	}
	if !slices.Equal(list, want) {
		t.Errorf("%+v, and not %+v", list, want)
	}
}

func TestNoGPUsAreNoError(t *testing.T) {
	class := filepath.Join(t.TempDir(), "misc")
	testkit.Equal(t, "GPUs without a class", len(testkit.Must(list(class))(t)), 0)
	device(t, class, "hw_random", "0000:01:00.0", "")
	testkit.Equal(t, "GPUs beside another device", len(testkit.Must(list(class))(t)), 0)
}

// Invariant: gpudriver: A GPU whose memory has no place is an error that names its file, and none that is left out.
func TestGPUWithoutAPlaceIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		resource string
		want     error
		says     string
	}{
		"a BAR without a place": {resource(none), unix.ENXIO, "BAR 2 has no place"},
		"too few lines":         {none + none, unix.EINVAL, "lines"},
		"garbage":               {resource("\x00\xff\xfe of no use\n"), unix.EINVAL, "BAR 2"},
		"empty":                 {"", unix.EINVAL, "1 lines"},
	} {
		t.Run(name, func(t *testing.T) {
			class := filepath.Join(t.TempDir(), "misc")
			device(t, class, "vnicgpu0", "0000:01:00.0", resource("0xc0000000 0xc3ffffff 0x0\n"))
			dir := device(t, class, "vnicgpu1", "0000:02:00.0", c.resource)
			_, err := list(class)
			testkit.ErrorIs(t, err, c.want)
			testkit.ErrorSays(t, err, filepath.Join(dir, "resource"), c.says)
			testkit.OK(t, os.WriteFile(filepath.Join(dir, "resource"), []byte(resource("0x1000 0x1fff 0x0\n")), 0o644))
			testkit.Equal(t, "GPUs afterwards", len(testkit.Must(list(class))(t)), 2)
			testkit.OK(t, os.Remove(filepath.Join(dir, "resource")))
			testkit.ErrorIs(t, testkit.Err(list(class)), os.ErrNotExist)
		})
	}
}

func TestBAROfAResource(t *testing.T) {
	for _, c := range []struct {
		line       string
		addr, size uint64
		err        error
	}{
		{"0x00000000c0000000 0x00000000c3ffffff 0x000000000014220c\n", 0xc000_0000, 64 << 20, nil},
		{"0x00000000c0000000 0x00000000c3ffffff 0x000000000014220c", 0xc000_0000, 64 << 20, nil},
		{"0x0000000000000000 0x0000000000000fff 0x0\n", 0, 4096, nil},
		{"0x1 0xffffffffffffffff 0x0\n", 1, math.MaxUint64, nil},
		{"0x0 0xffffffffffffffff 0x0\n", 0, 0, unix.ENXIO}, // 1<<64 bytes
		{none, 0, 0, unix.ENXIO},
		{"0x2000 0x1fff 0x0\n", 0, 0, unix.ENXIO},
		{"0x1000 0x1fff\n", 0, 0, unix.EINVAL},
		{"0x1000 0x1fff 0x0 0x0\n", 0, 0, unix.EINVAL},
		{"0x1000 end 0x0\n", 0, 0, strconv.ErrSyntax},
		{"-4096 0x1fff 0x0\n", 0, 0, strconv.ErrSyntax},
		{"0x1000 0x1ffffffffffffffff 0x0\n", 0, 0, strconv.ErrRange},
		{"\n", 0, 0, unix.EINVAL},
	} {
		t.Run(fmt.Sprintf("%q", c.line), func(t *testing.T) {
			addr, size, err := barOf([]byte(none + none + c.line))
			if addr != c.addr || size != c.size {
				t.Errorf("[%#x, +%#x), and not [%#x, +%#x)", addr, size, c.addr, c.size)
			}
			if c.err != nil {
				testkit.ErrorIs(t, err, c.err)
				return
			}
			testkit.OK(t, err)
		})
	}
}

func FuzzResource(f *testing.F) {
	for _, line := range []string{"0x00000000c0000000 0x00000000c3ffffff 0x000000000014220c\n", none,
		"0x0 0xffffffffffffffff 0\n"} {
		f.Add([]byte(resource(line)))
	}
	f.Add([]byte(none + none))
	f.Fuzz(func(t *testing.T, b []byte) {
		addr, size, err := barOf(b)
		switch {
		case err != nil && (addr != 0 || size != 0):
			t.Errorf("%v, and [%#x, +%#x)", err, addr, size)
		case err == nil && (size == 0 || size-1 > math.MaxUint64-addr):
			t.Errorf("[%#x, +%#x)", addr, size)
		}
	})
}
