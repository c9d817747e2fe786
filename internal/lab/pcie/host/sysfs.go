package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// location is the address of a PCI function, segment:bus:device.function.
type location struct{ segment, bus, device, function int }

func (l location) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", l.segment, l.bus, l.device, l.function)
}

// device is a PCI function in sysfs (Documentation/PCI/sysfs-pci.rst, Documentation/ABI/testing/sysfs-bus-pci).
type device struct {
	name string
	loc  location
	up   *location // the bridge above it; nil: none, it is on a root bus

	class, vendor, device uint32

	// NUMA node, current link speed and current link width: -1, 0 and 0 if sysfs does not show them.
	numa  int
	speed float64 // GT/s
	width int64   // lanes
}

// readDevices reads all PCI devices in the sysfs at sys, and returns them by name.
func readDevices(sys string) (map[string]*device, error) {
	dir := filepath.Join(sys, "bus/pci/devices")
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := make(map[string]*device, len(list))
	for _, entry := range list {
		d, err := readDevice(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		all[d.name] = d
	}
	return all, nil
}

// readDevice reads a device; path is a symbolic link to its place, as
// ../../../devices/pci0000:3a/0000:3b:00.0.
func readDevice(path string) (*device, error) {
	place, err := os.Readlink(path)
	if err != nil {
		return nil, fmt.Errorf("failed to readlink: %w", err)
	}
	d := &device{numa: -1}
	name, above := filepath.Base(place), filepath.Base(filepath.Dir(place))
	if d.loc, err = parseLocation(name); err != nil {
		return nil, fmt.Errorf("failed to parse device location %q: %w", name, err)
	}
	d.name = d.loc.String()
	if !strings.HasPrefix(above, "pci") {
		up, err := parseLocation(above)
		if err != nil {
			return nil, fmt.Errorf("failed to parse parent device location %q: %w", above, err)
		}
		d.up = &up
	}
	for _, f := range []struct {
		name     string
		optional bool
		parse    func(text string) error
	}{
		{"class", false, number(&d.class, 0, 32)},
		{"vendor", false, number(&d.vendor, 0, 32)},
		{"device", false, number(&d.device, 0, 32)},
		{"current_link_speed", true, d.parseSpeed},
		{"current_link_width", true, number(&d.width, 10, 64)},
		{"numa_node", true, number(&d.numa, 10, 32)},
	} {
		file := filepath.Join(path, f.name)
		text, err := readValue(file)
		switch {
		case f.optional && errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("failed to read file %q: %w", file, err)
		case f.optional && (text == "" || strings.HasPrefix(text, "Unknown")): // by pci_speed_string (drivers/pci/probe.c)
			continue
		}
		if err := f.parse(text); err != nil {
			return nil, fmt.Errorf("failed to parse %s %q %s: %w", f.name, text, d.name, err)
		}
	}
	return d, nil
}

func parseLocation(s string) (l location, err error) {
	_, err = fmt.Sscanf(s, "%x:%x:%x.%x", &l.segment, &l.bus, &l.device, &l.function)
	if err == nil && (l.String() != s || l.segment > math.MaxInt32) {
		err = errors.New("not a segment, bus, device and function")
	}
	return l, err
}

// number returns a function that parses a number into *v; with base 0, the prefix of the text (as 0x) shows its base.
func number[T int | int64 | uint32](v *T, base, bits int) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, base, bits)
		*v = T(n)
		return err
	}
}

func (d *device) parseSpeed(s string) (err error) {
	speed, unit, _ := strings.Cut(s, " ")
	if unit != "GT/s PCIe" {
		return errors.New("unknown unit")
	}
	d.speed, err = strconv.ParseFloat(speed, 64)
	return err
}

// readValue returns the first 128 bytes of a file at most, without white space around them. It makes one read call:
// a driver may return EAGAIN, and os.ReadFile may then wait and read again.
func readValue(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [128]byte
	n, err := unix.Read(int(f.Fd()), b[:])
	if err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(b[:n])), nil
}
