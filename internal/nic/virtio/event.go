package virtio

import (
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/virtq"
)

// call is an eventfd that the device writes. Any goroutine may fire it while another replaces it.
type call struct {
	eventFDs *nic.EventFDs               // of the device
	fd       atomic.Pointer[nic.EventFD] // nil: none
}

func (c *call) fire() {
	if e := c.fd.Load(); e != nil {
		e.Fire()
	}
}

// set replaces the eventfd; fd < 0: none.
func (c *call) set(fd int) {
	var e *nic.EventFD
	if fd >= 0 {
		e = c.eventFDs.New(fd)
	}
	c.eventFDs.End(c.fd.Swap(e))
}

// vring is the common part of receive and transmit queues.
type vring struct {
	dev   *Device
	index int
	call  call          // call eventfd; any goroutine may use call and fault
	fault call          // error eventfd
	vq    *virtq.Device // nil: stopped
	kick  int           // -1: stopped
	left  virtq.Base    // where the ring last stopped. Used by the control goroutine
	owed  bool          // the last interrupt was dropped (nic.Port.LoseInterrupt)
	lost  bool          // since the ring's start unreached has reported unreachable memory

	features uint64 // negotiated features at the ring's start
	hdrLen   uint32 // of virtio_net_hdr
}

func (v *vring) init(d *Device, index int) {
	v.dev, v.index, v.kick = d, index, -1
	v.call.eventFDs, v.fault.eventFDs = &d.eventFDs, &d.eventFDs
}

func (v *vring) start(vq *virtq.Device, kick int, features uint64) {
	v.vq, v.kick, v.owed, v.lost = vq, kick, false, false
	v.features, v.hdrLen = features, netHdrLen(features)
}

// unreached makes the monitor log that a chain's memory is unreachable, at most once for each start of the ring.
func (v *vring) unreached(err error) {
	if !v.lost {
		v.lost = true
		v.dev.report(func() {
			if v.dev.unreached == nil {
				v.dev.unreached = make(map[int]error)
			}
			v.dev.unreached[v.index] = err
		})
	}
}

// shouldCall reports whether to interrupt the driver, and sets owed if the interrupt is to be dropped
// (nic.Port.LoseInterrupt). wanted: the driver asks for an interrupt, or the last one was dropped. After a dropped one
// the driver perhaps asks for none, because used.idx has passed the driver's event index.
func (v *vring) shouldCall(wanted bool) bool {
	if !wanted {
		return false
	}
	v.owed = v.dev.port.InterruptLost()
	return !v.owed
}

func (v *vring) release() (base uint32) {
	v.left = v.vq.Base()
	v.vq.Close()
	v.vq = nil
	scm.Close(v.kick)
	v.kick = -1
	return v.left.State()
}

func (v *vring) closeEventFDs() {
	v.call.set(-1)
	v.fault.set(-1)
}

func (d *Device) vring(index int) *vring {
	if index%2 == 1 {
		return &d.tx[index/2].vring
	}
	return &d.rx[index/2].vring
}
