// Package guest is for programs that use device memory TCP in guests of `vnic boot` and in images of
// `vnic image build`. It opens the guest's devices, and provides what such programs need: memory, steering, and
// connections to other guests.
//
// A program is a function that gets the guest's first device. It runs as root in the guest:
//
//	func main() { guest.Main(receive) }
//
//	func receive(ctx context.Context, d *guest.Device) error {
//		l, err := d.ListenGPU(5201, 16<<20) // payload arrives in 16 MiB of the GPU's memory: l.Memory
//		...
//	}
//
// With the following command both guests run the program; [Device.Index] tells them apart:
//
//	vnic boot --nic gve --guests 2 -- ./program
//
// Programs in other languages use Linux's own API, with --nic gve: guest/docs/devmem.c is an example in C.
//
// The configuration comes from environment variables, such as VNIC_DEVICE. Without them, [Open], [OpenDevice] and
// [Devices] return [ErrNoGuest].
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

// ErrNoGuest means that the environment variables of a guest are missing or malformed.
var ErrNoGuest = errors.New("not in a guest of vnic boot")

// Device is an open device of this guest. Its methods are safe for concurrent use, and so are the methods of
// [devmem.Device].
type Device struct {
	devmem.Device

	Index, Guests int        // the guest's number from 0; how many guests there are, or 0 in an image of vnic image build
	Addr          netip.Addr // the device's address
	Queue         int        // the receive queue that ListenGPU binds: the device's last one
	GPU           int        // the GPU's number, for Register
	Size          uint64     // usable bytes of the GPU's memory, from offset 0: a multiple of devmem.PageSize

	// StallLimit is the stall limit (devmem.Conn.SetStallLimit) of connections that are dialed later, or accepted
	// by listeners that are made later; 0: no limit. Open and OpenDevice set it to 30 seconds, or more on a slow
	// machine (--slow).
	StallLimit time.Duration
	// PeerLimit is how long Dial and DialGuest wait for a peer, and Accept and AcceptConn of listeners that are made
	// later; 0: no limit. Open and OpenDevice set it to a minute, or more on a slow machine (--slow).
	PeerLimit time.Duration

	peers *[]netip.Addr

	mu     sync.Mutex
	memory devmem.Memory
	used   uint64 // bytes of Size that Alloc has returned; under mu

	once     sync.Once
	closeErr error
}

// Open opens the device of $VNIC_DEVICE, with the first GPU that the device reaches. The caller closes the Device.
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

// take fills in d for t: its last queue and its first GPU. If t.Shared, it removes that queue from RSS. After an error
// the caller closes t.
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

// Close closes the device, its connections, bindings and listeners. It is idempotent, and ends blocked calls.
func (d *Device) Close() error {
	d.once.Do(func() { d.closeErr = d.Device.Close() })
	return d.closeErr
}

// AddrOf returns the address of a guest's device on this device's rail: the guests' devices at one position in their
// lists (Devices) are a rail. The result is the zero Addr if $VNIC_PEERS is set and has no address for the guest.
// Without $VNIC_PEERS, AddrOf computes the address from Addr, also for guests that do not exist.
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
