package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	idVirtioNet = "0x1af4:0x1041" // modern virtio-net
	idIVSHMEM   = "0x1af4:0x1110"

	uioDriver = "uio_pci_generic"
)

// sysfs is the directory that has sys, proc and dev: "/", or a test's tree.
type sysfs string

func (s sysfs) path(elem ...string) string {
	return filepath.Join(append([]string{string(s)}, elem...)...)
}

func (s sysfs) drivers() string { return s.path("sys/bus/pci/drivers") }

type pciDev struct {
	sys  sysfs
	addr string // "0000:00:02.0"
	dir  string
}

func (s sysfs) find(id string) ([]pciDev, error) {
	dir := s.path("sys/bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing PCI devices: %w: mount sysfs on /sys", err)
	}
	var devs []pciDev
	for _, e := range entries {
		d := pciDev{sys: s, addr: e.Name(), dir: filepath.Join(dir, e.Name())}
		vendor, err1 := d.attr("vendor")
		device, err2 := d.attr("device")
		if err1 == nil && err2 == nil && vendor+":"+device == id {
			devs = append(devs, d)
		}
	}
	slices.SortFunc(devs, func(a, b pciDev) int { return strings.Compare(a.addr, b.addr) })
	return devs, nil
}

func (s sysfs) findNIC(addr string) (pciDev, error) {
	devs, err := s.find(idVirtioNet)
	if err != nil {
		return pciDev{}, err
	}
	var list []string
	for _, d := range devs {
		if d.addr == addr {
			return d, nil
		}
		list = append(list, d.addr)
	}
	switch {
	case addr != "":
		return pciDev{}, fmt.Errorf("no virtio-net device (1af4:1041) at %s; there are: %s: %w", addr,
			strings.Join(list, ", "), unix.ENODEV)
	case len(devs) == 0:
		return pciDev{}, fmt.Errorf("no virtio-net device (1af4:1041) on the PCI bus: start QEMU with -device "+
			"virtio-net-pci,disable-legacy=on: %w", unix.ENODEV)
	case len(devs) > 1:
		return pciDev{}, fmt.Errorf("several virtio-net devices: %s: name one", strings.Join(list, ", "))
	}
	return devs[0], nil
}

func (d pciDev) attr(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(d.dir, name))
	return strings.TrimSpace(string(b)), err
}

type pciBAR struct{ addr, size uint64 }

const resourceMem = 0x200 // IORESOURCE_MEM

// bars reads the address ranges of the BARs. A BAR of size 0 is not memory, or has no address.
func (d pciDev) bars() (bars [numBARs]pciBAR, err error) {
	text, err := d.attr("resource")
	if err != nil {
		return bars, fmt.Errorf("places of the BARs: %w", err)
	}
	for i, line := range strings.Split(text, "\n") {
		if i >= numBARs {
			break
		}
		var v [3]uint64
		fields := strings.Fields(line)
		if len(fields) != len(v) {
			return bars, fmt.Errorf("%s/resource: line %d: %q", d.dir, i+1, line)
		}
		for k := range v {
			if v[k], err = strconv.ParseUint(strings.TrimPrefix(fields[k], "0x"), 16, 64); err != nil {
				return bars, fmt.Errorf("%s/resource: line %d: %w", d.dir, i+1, err)
			}
		}
		if v[2]&resourceMem != 0 && v[0] != 0 && v[1] > v[0] {
			bars[i] = pciBAR{addr: v[0], size: v[1] - v[0] + 1}
		}
	}
	return bars, nil
}

func (d pciDev) driver() string {
	link, err := os.Readlink(filepath.Join(d.dir, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(link)
}

// writeAttr writes a value to a file in sysfs, which requires that it is one write.
func writeAttr(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// bindUIO binds the device to uio_pci_generic, in place of another driver, and returns the name of its uio
// device.
func (d pciDev) bindUIO() (string, error) {
	dir := filepath.Join(d.sys.drivers(), uioDriver)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("%w: the driver for interrupts is not there: load uio.ko and uio_pci_generic.ko", err)
	}
	if old := d.driver(); old != uioDriver {
		if old != "" {
			if err := writeAttr(filepath.Join(d.sys.drivers(), old, "unbind"), d.addr); err != nil {
				return "", fmt.Errorf("taking %s from %s: %w", d.addr, old, err)
			}
		}
		// driver_override affects one device. An id in new_id, for a kernel without driver_override, matches every
		// virtio-net device without a driver.
		err := writeAttr(filepath.Join(d.dir, "driver_override"), uioDriver)
		if errors.Is(err, fs.ErrNotExist) {
			err = writeAttr(filepath.Join(dir, "new_id"), "1af4 1041")
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("telling %s about %s: %w", uioDriver, d.addr, err)
		}
		if err := writeAttr(filepath.Join(dir, "bind"), d.addr); err != nil && d.driver() != uioDriver {
			return "", fmt.Errorf("binding %s to %s: %w: the kernel's log says why", d.addr, uioDriver, err)
		}
	}
	names, err := os.ReadDir(filepath.Join(d.dir, "uio"))
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("%s bound to %s has no uio device (%w): has it an INTx pin?", d.addr, uioDriver,
			errors.Join(err, fs.ErrNotExist))
	}
	return names[0].Name(), nil
}

func (d pciDev) openUIO(name string) (*os.File, error) {
	path := d.sys.path("dev", name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		text, err := d.attr(filepath.Join("uio", name, "dev"))
		if err != nil {
			return nil, fmt.Errorf("number of %s: %w", path, err)
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(text, "%d:%d", &major, &minor); err != nil {
			return nil, fmt.Errorf("number of %s: %q: %w", path, text, err)
		}
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
			return nil, fmt.Errorf("making %s: %w: mount devtmpfs on /dev", path, err)
		}
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (d pciDev) openConfig() (pciConfig, error) {
	f, err := os.OpenFile(filepath.Join(d.dir, "config"), os.O_RDWR, 0)
	if err != nil {
		return pciConfig{}, fmt.Errorf("configuration space: %w", err)
	}
	return pciConfig{f}, nil
}

func (d pciDev) mapBAR(i int, size uint64) ([]byte, error) {
	path := filepath.Join(d.dir, "resource"+strconv.Itoa(i))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("BAR %d: %w", i, err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil,
			fmt.Errorf("mapping BAR %d, %#x bytes of %s: %w: EINVAL and EPERM mean that a driver still has it, or kernel "+
				"lockdown", i, size, path, err)
	}
	return b, nil
}
