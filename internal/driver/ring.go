package driver

import (
	"fmt"

	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

type ring struct {
	*virtq.Driver
	vq     int
	addrs  ringAddrs
	config virtq.DriverConfig
}

// newRing makes a ring of want entries, or fewer if the device supports no more. If the device supports indirect
// descriptors and perTable is more than 1, there is a table of perTable descriptors for each chain.
func newRing(t transport, vq int, want uint16, features uint64, perTable int) (*ring, error) {
	size := t.ringSize(vq, want)
	if size == 0 {
		return nil, fmt.Errorf("the device has no virtqueue %d", vq)
	}
	_, _, _, total := virtq.Layout(size)
	mem, err := t.alloc(int(total))
	if err != nil {
		return nil, err
	}
	r := &ring{vq: vq, config: virtq.DriverConfig{
		Size: size, Mem: mem.b, Addr: mem.addr, EventIdx: features&vhostuser.FeatureEventIdx != 0, Emulated: t.emulated(),
	}}
	if features&vhostuser.FeatureIndirect != 0 && perTable > 1 {
		tables, err := t.alloc(int(size) * perTable * descLen)
		if err != nil {
			return nil, err
		}
		r.config.Indirect, r.config.IndirectAddr = tables.b[:int(size)*perTable*descLen], tables.addr
	}
	return r, r.renew()
}

const descLen = 16 // struct virtq_desc

// renew makes the ring empty, in the same memory, and asks for no calls. The device must not be using the ring.
func (r *ring) renew() (err error) {
	if r.Driver, err = virtq.NewDriver(r.config); err != nil {
		return err
	}
	r.DisableCall()
	desc, avail, used := r.Addrs()
	r.addrs = ringAddrs{size: r.config.Size, desc: desc, avail: avail, used: used}
	return nil
}
