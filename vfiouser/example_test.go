package vfiouser_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/pci"
)

// adder is a device with one register: a driver writes the address of two 32-bit numbers to it. The device writes their
// sum behind them, and sends an interrupt if the driver has set an eventfd.
type adder struct {
	space  *dma.Space
	copier *dma.Copier
	config *pci.Config
	irq    int
}

func newAdder(space *dma.Space) (*adder, error) {
	config, err := pci.New(pci.Options{
		Vendor: 0x1af4, Device: 0x10f0, Class: 0xff0000,
		BARs: [6]pci.BAR{{Size: 4096}, {Size: 4096}},
		MSIX: pci.MSIX{Vectors: 1, BAR: 1, PBAOff: 2048},
	})
	return &adder{space: space, copier: dma.NewCopier(), config: config, irq: -1}, err
}

func (d *adder) Info() vfiouser.Info {
	return vfiouser.Info{
		Reset: true,
		Regions: []vfiouser.Region{
			0:                     {Size: 4096, Write: true},
			1:                     {Size: 4096, Read: true, Write: true}, // MSI-X table, which QEMU handles, and PBA
			vfiouser.RegionConfig: {Size: d.config.Size(), Read: true, Write: true},
		},
		IRQs: []vfiouser.IRQ{vfiouser.IRQMSIX: {Count: 1}},
	}
}

func (d *adder) ReadRegion(region int, off uint64, b []byte) error {
	if region == vfiouser.RegionConfig {
		return d.config.Read(off, b)
	}
	return nil // b is zero
}

func (d *adder) WriteRegion(region int, off uint64, b []byte) error {
	switch {
	case region == vfiouser.RegionConfig:
		return d.config.Write(off, b)
	case region == 0 && off == 0 && len(b) == 8:
		return d.add(binary.LittleEndian.Uint64(b))
	}
	return nil
}

func (d *adder) add(iova uint64) error {
	defer d.space.Leave(d.space.Enter()) // translated segments stay mapped until Leave
	var b [8]byte
	from, err := d.space.Translate(nil, iova, 8, dma.Read)
	if err != nil {
		return err
	}
	if _, err := d.copier.Read(b[:], from); err != nil {
		return err
	}
	to, err := d.space.Translate(nil, iova+8, 4, dma.Write)
	if err != nil {
		return err
	}
	sum := binary.LittleEndian.Uint32(b[0:]) + binary.LittleEndian.Uint32(b[4:])
	if _, err := d.copier.Write(to, binary.LittleEndian.AppendUint32(nil, sum)); err != nil {
		return err
	}
	if d.irq >= 0 {
		_, err = unix.Write(d.irq, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return err
}

func (d *adder) SetIRQ(_, _ int, fd int) error {
	if d.irq >= 0 {
		unix.Close(d.irq)
	}
	d.irq = fd
	return nil
}

func (d *adder) DisableIRQs(int) error    { return d.SetIRQ(0, 0, -1) }
func (d *adder) Reset() error             { d.config.Reset(); return nil }
func (d *adder) Unmapping(uint64, uint64) {}
func (d *adder) MemoryChanged()           {}
func (d *adder) Disconnected()            { _ = d.SetIRQ(0, 0, -1) }

// This example has a device, and a driver that uses it, in one process. QEMU would connect to a Unix socket,
// with
//
//	-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/run/adder.sock"}}'
//	-object memory-backend-memfd,id=ram,size=1G,share=on -machine q35,memory-backend=ram
func Example() {
	space := dma.NewSpace("adder", dma.NewFiles())
	dev, err := newAdder(space)
	check(err)
	ours, theirs, err := vfiotest.Pair()
	check(err)
	done := make(chan error)
	go func() { done <- vfiouser.NewServer(dev, space, nil).Serve(context.Background(), theirs) }()

	driver, err := vfiotest.Connect(ours)
	check(err)
	ram, err := vfiotest.NewMemory(1 << 20)
	check(err)
	defer ram.Close()
	irq, err := vfiotest.NewEvent()
	check(err)
	defer irq.Close()
	check(driver.Map(0x100000, ram))
	check(driver.SetIRQ(vfiouser.IRQMSIX, 0, irq))

	binary.LittleEndian.PutUint32(ram.Bytes()[64:], 19)
	binary.LittleEndian.PutUint32(ram.Bytes()[68:], 23)
	check(driver.Post(0, 0, binary.LittleEndian.AppendUint64(nil, 0x100000+64)))
	if _, err := irq.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("sum:", binary.LittleEndian.Uint32(ram.Bytes()[72:]))

	driver.Close()
	fmt.Println("served:", <-done)
	fmt.Println("regions left:", len(space.Regions()))
	// Output:
	// sum: 42
	// served: <nil>
	// regions left: 0
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
