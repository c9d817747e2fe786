// Command doorbell stores once to a PCI device's BAR, right after page faults, as a driver in user space may:
//
//	doorbell /sys/bus/pci/devices/ADDRESS/resource0
//
// It shows a fault of QEMU's emulation of SVM together with KVM (docs/found.md, "the first access to a BAR after an
// exception"): if the fault shows, the guest ends before this program prints "stored".
package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// faults is the number of page faults before the store. The first ones may exit to the host; directly after such an
// exit the fault of QEMU does not show.
const faults = 100

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: doorbell RESOURCE")
		os.Exit(2)
	}
	if err := ring(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "doorbell:", err)
		os.Exit(1)
	}
	fmt.Println("stored")
}

// ring stores zeros to the first 4 bytes of the BAR whose file is path.
func ring(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	page := os.Getpagesize()
	bar, err := unix.Mmap(int(f.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap %s: %w", path, err)
	}
	fresh, err := unix.Mmap(-1, 0, faults*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	if err := unix.Madvise(fresh, unix.MADV_NOHUGEPAGE); err != nil { // one page fault for each page
		return err
	}
	for i := range faults {
		if fresh[i*page] != 0 { // the read maps the page of zeros
			return errors.New("fresh memory is not zero")
		}
	}
	*(*[4]byte)(bar) = [4]byte{} // one store
	return nil
}
