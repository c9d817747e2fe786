package pci_test

import (
	"encoding/binary"
	"fmt"
	"log"

	"vnic.dev/vnic/vfiouser/pci"
)

// A driver reads a device's identity and the size of its first BAR; then it enables the device's memory and DMA.
func Example() {
	config, err := pci.New(pci.Options{
		Vendor: 0x1af4, Device: 0x10f0, Class: 0xff0000,
		BARs: [6]pci.BAR{0: {Size: 4096}, 1: {Size: 4096}},
		MSIX: pci.MSIX{Vectors: 1, BAR: 1, PBAOff: 2048},
	})
	check(err)
	read := func(off uint64) uint32 {
		var b [4]byte
		check(config.Read(off, b[:]))
		return binary.LittleEndian.Uint32(b[:])
	}
	write := func(off uint64, v uint32) {
		check(config.Write(off, binary.LittleEndian.AppendUint32(nil, v)))
	}
	fmt.Printf("vendor %04x, device %04x\n", read(0)&0xffff, read(0)>>16)

	const command, bar0 = 0x04, 0x10
	write(bar0, 0xffffffff) // the bits below the size stay 0
	fmt.Println("BAR 0:", -(read(bar0) &^ 0xf), "bytes")
	write(bar0, 0xfebf0000)
	fmt.Println("bus master:", config.BusMaster())
	write(command, 1<<2|1<<1)
	fmt.Println("bus master:", config.BusMaster(), "and in memory:", config.MemoryEnabled())
	// Output:
	// vendor 1af4, device 10f0
	// BAR 0: 4096 bytes
	// bus master: false
	// bus master: true and in memory: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
