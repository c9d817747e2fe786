package virtio

import (
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/virtq"
)

// call is an eventfd that the device writes to signal a frontend: a queue's call eventfd, or its
// error eventfd. Any goroutine may fire it, while the control goroutine replaces it, or the monitor
// takes it away.
type call struct {
	eventFDs *nic.EventFDs               // the eventfds of the device
	fd       atomic.Pointer[nic.EventFD] // nil: none
}

// fire writes the eventfd. It ignores errors: if the eventfd is broken, only its driver suffers.
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

// vring is the part of a queue that receive and transmit queues share.
type vring struct {
	dev   *Device
	index int
	call  call          // any goroutine uses call and fault
	fault call          // the error eventfd
	vq    *virtq.Device // nil: stopped
	kick  int           // -1: stopped
	left  virtq.Base    // where the ring was when it last stopped. Used by the control goroutine
	owed  bool          // the device dropped the last interrupt (nic.Port.LoseInterrupt)
	lost  bool          // unreached has reported unreachable memory since the start

	features uint64 // features negotiated when the device opened the ring
	hdrLen   uint32 // length of virtio_net_hdr under these features
}

func (v *vring) init(d *Device, index int) {
	v.dev, v.index, v.kick = d, index, -1
	v.call.eventFDs, v.fault.eventFDs = &d.eventFDs, &d.eventFDs
}

// start sets the ring, which the device has opened with these features, and its kick.
func (v *vring) start(vq *virtq.Device, kick int, features uint64) {
	v.vq, v.kick, v.owed, v.lost = vq, kick, false, false
	v.features, v.hdrLen = features, netHdrLen(features)
}

// unreached reports that a chain's memory is unreachable, once for each start of the ring. It never
// waits.
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

// shouldCall reports whether to interrupt the driver; wanted: the driver asks for it. If it drops
// an interrupt, it sets owed, and Flush or Publish then wants the next interrupt whatever the
// driver's event index is: the ring has passed that index, so otherwise the driver might get no
// other interrupt.
func (v *vring) shouldCall(wanted bool) bool {
	if !wanted {
		return false
	}
	v.owed = v.dev.port.InterruptLost()
	return !v.owed
}

// release closes the ring and its kick, and returns where the ring was.
func (v *vring) release() (base uint32) {
	v.left = v.vq.Base()
	v.vq.Close()
	v.vq = nil
	scm.Close(v.kick)
	v.kick = -1
	return v.left.State()
}

// closeEventFDs ends the queue's call and error eventfds.
func (v *vring) closeEventFDs() {
	v.call.set(-1)
	v.fault.set(-1)
}

// vring returns the vring with this index.
func (d *Device) vring(index int) *vring {
	if index%2 == 1 {
		return &d.tx[index/2].vring
	}
	return &d.rx[index/2].vring
}
