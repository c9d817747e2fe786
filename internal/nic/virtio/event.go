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
	call  call          // any goroutine uses call and fault
	fault call          // error eventfd
	vq    *virtq.Device // nil: stopped
	kick  int           // -1: stopped
	left  virtq.Base    // where the ring last stopped. Used by the control goroutine
	owed  bool          // the last interrupt was dropped (nic.Port.LoseInterrupt)
	lost  bool          // unreached has reported unreachable memory since the start

	features uint64 // under which the ring was opened
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

// unreached reports that a chain's memory is unreachable, once for each start of the ring. It never waits.
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

// shouldCall reports whether to interrupt the driver; wanted: the driver asks for it, or one was dropped (owed),
// as the ring may have passed the driver's event index then.
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
