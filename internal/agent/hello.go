package agent

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SayHello asks a guest for its Hello.
var SayHello = NewOperation[None, Hello]("hello")

// Hello describes a guest, as seen from inside.
type Hello struct {
	Kernel    string   `json:"kernel"` // uname -r
	Cmdline   string   `json:"cmdline"`
	Go        string   `json:"go"`
	CPUs      int      `json:"cpus"`
	MemTotal  uint64   `json:"mem_total"` // bytes
	HugePages int      `json:"hugepages"` // reserved, of the kernel's default size: 2 MiB
	BootMS    int64    `json:"boot_ms"`   // from the kernel's start to the agent's
	UptimeMS  int64    `json:"uptime_ms"`
	Modules   []string `json:"modules"`
	PCI       []PCI    `json:"pci"`
}

// PCI is a PCI device of the guest.
type PCI struct {
	Addr   string `json:"addr"`
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
	Class  uint32 `json:"class"`
	Driver string `json:"driver,omitempty"`
	BARs   []BAR  `json:"bars,omitempty"`
}

// BAR is a base address register of a PCI device, with memory or I/O ports behind it.
type BAR struct {
	Index int    `json:"index"`
	Start uint64 `json:"start"`
	Size  uint64 `json:"size"`
	Flags uint64 `json:"flags"` // Linux's IORESOURCE_*
}

// Find returns the devices with these ids.
func (h *Hello) Find(vendor, device uint16) []PCI {
	return slices.DeleteFunc(slices.Clone(h.PCI), func(p PCI) bool { return p.Vendor != vendor || p.Device != device })
}

// started is the machine's uptime in milliseconds when this process started.
var started = uptime()

func init() {
	SayHello.Serve(func(ctx context.Context, _ None) (Hello, error) { return *hello(ctx), nil })
}

func hello(ctx context.Context) *Hello {
	h := &Hello{
		Cmdline: readString("/proc/cmdline"), Go: runtime.Version(), CPUs: runtime.NumCPU(),
		BootMS: started, UptimeMS: uptime(), Modules: EnvOf(ctx).Modules, PCI: listPCI("/sys/bus/pci/devices"),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		h.MemTotal = si.Totalram * uint64(si.Unit)
	}
	h.HugePages, _ = strconv.Atoi(readString("/proc/sys/vm/nr_hugepages"))
	return h
}

func uptime() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return ts.Nano() / 1e6
}

func readString(path string) string {
	b, _ := os.ReadFile(path)
	return string(bytes.TrimSpace(b))
}

func listPCI(dir string) []PCI {
	entries, _ := os.ReadDir(dir)
	var list []PCI
	for _, e := range entries {
		d := filepath.Join(dir, e.Name())
		p := PCI{
			Addr:   e.Name(),
			Vendor: uint16(readHex(filepath.Join(d, "vendor"))),
			Device: uint16(readHex(filepath.Join(d, "device"))),
			Class:  uint32(readHex(filepath.Join(d, "class"))),
			BARs:   parseResource(readString(filepath.Join(d, "resource"))),
		}
		if l, err := os.Readlink(filepath.Join(d, "driver")); err == nil {
			p.Driver = filepath.Base(l)
		}
		list = append(list, p)
	}
	return list
}

func readHex(path string) uint64 {
	v, _ := strconv.ParseUint(strings.TrimPrefix(readString(path), "0x"), 16, 64)
	return v
}

// parseResource parses the first six lines, "start end flags", of sysfs' "resource", one for each BAR. It leaves out
// unused BARs, and malformed lines.
func parseResource(text string) []BAR {
	var bars []BAR
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) != 3 || i >= 6 {
			continue
		}
		var v [3]uint64
		for j := range v {
			v[j], _ = strconv.ParseUint(strings.TrimPrefix(f[j], "0x"), 16, 64)
		}
		if v[1] > v[0] {
			bars = append(bars, BAR{Index: i, Start: v[0], Size: v[1] - v[0] + 1, Flags: v[2]})
		}
	}
	return bars
}
