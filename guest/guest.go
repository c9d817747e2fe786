// Package guest opens the device for device memory TCP that `vnic boot` gives the programs in its guests, whichever NIC it is:
// with --nic virtio our driver and stack on a second NIC, with --nic gve Linux's own on eth0.
//
//	d, err := guest.Open(ctx)      // in the guest, as root
//	buf, err := d.Register(d.GPU, 0, d.Size)
//	b, err := d.BindRX(buf, d.Queue)
//	f, err := d.AddFlow(devmem.Flow{Dst: netip.AddrPortFrom(d.Addr, 5201), Queue: d.Queue})
//	l, err := d.Listen(netip.AddrPortFrom(d.Addr, 5201))  // and so on: see package devmem
//
// The device is the program's alone while it is open. What it is comes from the environment that vnic boot makes, VNIC_DEVICE
// and so on; a program that is started in another way gets an error that says so.
package guest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest-images/devmemtool"
)

// ErrNoGuest says that a program does not run in a guest of vnic boot.
var ErrNoGuest = errors.New("not in a guest of vnic boot")

// devmemHost is what the index of a guest is added to for the last part of its Addr.
const devmemHost = 101

// Device is the device, and who we are.
type Device struct {
	devmem.Device

	Index, Guests int        // which guest this is, from 0, and of how many
	Addr          netip.Addr // the device's
	Queue         int        // a receive queue that can be bound
	GPU           int        // what Register wants
	Size          uint64     // how much of the GPU's memory can be used, from 0: a multiple of devmem.PageSize

	memory devmemtool.Memory
}

// Open opens the device. Its Close closes all that was opened of it.
func Open(ctx context.Context) (*Device, error) {
	d := &Device{}
	name, addr := os.Getenv("VNIC_DEVICE"), os.Getenv("VNIC_ADDR")
	if name == "" || addr == "" {
		return nil, fmt.Errorf("no VNIC_DEVICE and VNIC_ADDR in the environment: %w", ErrNoGuest)
	}
	prefix, err := netip.ParsePrefix(addr)
	if err == nil {
		d.Index, err = strconv.Atoi(os.Getenv("VNIC_INDEX"))
	}
	if err == nil {
		d.Guests, err = strconv.Atoi(os.Getenv("VNIC_GUESTS"))
	}
	if err != nil {
		return nil, fmt.Errorf("environment: %w: %w", err, ErrNoGuest)
	}
	t, err := devmemtool.Open(ctx, devmemtool.Request{Interface: name, Address: prefix, Unguarded: true})
	if err != nil {
		return nil, err
	}
	if err := d.take(t, prefix.Addr()); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return d, nil
}

// take fills in what an opened device has. Where RSS spreads over all queues, the one to be bound is taken out of it.
func (d *Device) take(t *devmemtool.Device, addr netip.Addr) error {
	if len(t.GPUs) == 0 || t.Queues < 2 {
		return fmt.Errorf("%s: %d GPUs and %d receive queues: one GPU and two queues are needed", t.Name, len(t.GPUs), t.Queues)
	}
	d.Device, d.Addr, d.Queue, d.memory = t.Device, addr, t.Queues-1, t.Memory
	d.GPU, d.Size = t.GPUs[0].ID, t.GPUs[0].Size/devmem.PageSize*devmem.PageSize
	if t.Shared {
		return d.SetRSS(d.Queue)
	}
	return nil
}

// AddrOf is the address of the device of another guest.
func (d *Device) AddrOf(guest int) netip.Addr {
	a := d.Addr.As16()
	a[15] = byte(devmemHost + guest)
	return netip.AddrFrom16(a).Unmap()
}

// Write puts bytes into the GPU's memory, which must be registered there. It is for a program's own few bytes: what the device
// receives and sends does not pass here.
func (d *Device) Write(ctx context.Context, off uint64, b []byte) error {
	return d.memory.WriteGPU(ctx, d.GPU, off, b)
}

// Read gets bytes of the GPU's memory, as Write puts them there.
func (d *Device) Read(ctx context.Context, off uint64, b []byte) error {
	return d.memory.ReadGPU(ctx, d.GPU, []devmem.Range{{Off: off, Len: uint64(len(b))}}, b)
}
