// Package guest is for programs in guests of `vnic boot` that do device memory TCP: it opens the
// device that there is, whichever NIC it is (with --nic virtio our driver and stack on a second
// NIC, with --nic gve Linux's own on eth0), and does what every such program needs: memory,
// steering, a way to the other guests. What it gives are a [devmem.Device] and its connections:
// receiving and sending are as package devmem has them.
//
// A program is a function that gets the device, as root, in the guest:
//
//	func main() { guest.Main(receive) }
//
//	func receive(ctx context.Context, d *guest.Device) error {
//		l, err := d.ListenGPU(5201, 16<<20) // what comes lands in 16 MiB of the GPU's memory: l.Memory
//		...
//	}
//
// The examples are whole programs, a receiver and a sender. Both guests run the same command;
// [Device.Index] tells them apart:
//
//	vnic boot --nic gve --guests 2 -- ./program
//
// Programs in other languages use Linux's own API, with --nic gve: docs/devmem.c is one in C.
//
// The device is the program's alone while it is open. What it is comes from the environment that
// vnic boot makes, VNIC_DEVICE and so on; a program that is started in another way gets
// [ErrNoGuest].
//
// The package is API (README, Stability).
package guest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/limits"
)

// ErrNoGuest says that a program does not run in a guest of vnic boot.
var ErrNoGuest = errors.New("not in a guest of vnic boot")

// Device is the device, and who we are. Its methods, [devmem.Device]'s included, may be called from many goroutines.
type Device struct {
	devmem.Device

	Index, Guests int        // which guest this is, from 0, and of how many; 0: not known, in an image of vnic image build
	Addr          netip.Addr // the device's
	Queue         int        // a receive queue that can be bound, the one that ListenGPU binds
	GPU           int        // what Register wants
	Size          uint64     // how much of the GPU's memory can be used, from 0: a multiple of devmem.PageSize

	// StallLimit is the stall limit of connections (devmem.Conn.SetStallLimit) that are dialed or accepted from now on: 30
	// seconds when the device is opened, so that a program that waits in vain ends, and says for what. A program whose
	// connections may be idle for longer sets 0, which is none, or another limit, here or at a connection.
	StallLimit time.Duration
	// PeerLimit is how long Dial, DialGuest and AcceptConn wait for a peer: a minute when the device is opened; 0: no
	// limit.
	PeerLimit time.Duration

	peers *[]netip.Addr // of guests, by their number; nil: they count up

	mu     sync.Mutex
	memory devmem.Memory
	used   uint64 // of Size, by Alloc; under mu

	once     sync.Once
	closeErr error // of once
}

// Open opens the device. Its Close closes all that was opened of it. Most programs leave both to [Main].
func Open(ctx context.Context) (*Device, error) {
	d, err := first()
	if err != nil {
		return nil, err
	}
	return open(ctx, d)
}

func open(ctx context.Context, n named) (*Device, error) {
	d := &Device{}
	var err error
	if d.peers, err = parsePeers(n.peers); err != nil {
		return nil, err
	}
	if d.Index, err = strconv.Atoi(os.Getenv("VNIC_INDEX")); err == nil {
		d.Guests, err = strconv.Atoi(os.Getenv("VNIC_GUESTS"))
	}
	if err != nil {
		return nil, fmt.Errorf("environment: %w: %w", err, ErrNoGuest)
	}
	t, err := devmemtool.Open(ctx, devmemtool.Request{Interface: n.device, Address: n.addr, Unguarded: true})
	if err != nil {
		return nil, err
	}
	if err := d.take(t, n.addr.Addr()); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return d, nil
}

// take fills in what an opened device has. Where RSS spreads over all queues, the one to be bound is taken out of it.
func (d *Device) take(t *devmemtool.Device, addr netip.Addr) error {
	if len(t.GPUs) == 0 || t.Queues < 2 {
		return fmt.Errorf("%s: %d GPUs and %d receive queues: one GPU and two queues are needed", t.Name, len(t.GPUs),
			t.Queues)
	}
	d.Device, d.Addr, d.Queue, d.memory = t.Device, addr, t.Queues-1, t.Memory
	d.StallLimit, d.PeerLimit = limits.ProgramStall.Here(), limits.Peer.Here()
	d.GPU, d.Size = t.GPUs[0].ID, t.GPUs[0].Size/devmem.PageSize*devmem.PageSize
	if t.Shared {
		return d.SetRSS(d.Queue)
	}
	return nil
}

// Close closes the device and all that was opened of it. It may be called again, and while others
// use the device: their calls end.
func (d *Device) Close() error {
	d.once.Do(func() { d.closeErr = d.Device.Close() })
	return d.closeErr
}

// AddrOf is the address of the device of another guest: with a lab file, of that on the same rail. A guest that has none
// there has the zero Addr.
func (d *Device) AddrOf(guest int) netip.Addr {
	if d.peers != nil {
		if guest < 0 || guest >= len(*d.peers) {
			return netip.Addr{}
		}
		return (*d.peers)[guest]
	}
	a := d.Addr.As16()
	a[15] = byte(guestnet.DevmemHost + guest + 1)
	return netip.AddrFrom16(a).Unmap()
}
