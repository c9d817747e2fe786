package virtio

import (
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/virtq"
)

// call is an eventfd that a frontend wants written: a queue's call, or its error. Any goroutine
// fires it, while the control goroutine may replace it, and the monitor take it away.
type call struct {
	eventFDs *nic.EventFDs               // the device's
	fd       atomic.Pointer[nic.EventFD] // nil: the driver polls
}

// fire writes the eventfd. A driver's broken call is its own loss.
func (c *call) fire() {
	if l := c.fd.Load(); l != nil {
		l.Fire()
	}
}

// set puts a new eventfd (none if fd is negative) in the place of the old one.
func (c *call) set(fd int) {
	var l *nic.EventFD
	if fd >= 0 {
		l = c.eventFDs.New(fd)
	}
	c.eventFDs.End(c.fd.Swap(l))
}

// vring is what queues of both kinds have of their vring.
type vring struct {
	dev   *Device
	index int
	call  call          // any goroutine, as fault
	fault call          // the error descriptor
	vq    *virtq.Device // nil: stopped
	kick  int           // -1: stopped
	left  virtq.Base    // where the ring was when it last stopped. Control goroutine
	owed  bool          // the last call was lost (nic.Port.LoseInterrupt)
	lost  bool          // a chain's memory could not be reached, and that is reported

	features uint64 // negotiated, as the ring was opened
	hdrLen   uint32 // of virtio_net_hdr, by these
}

func (v *vring) init(d *Device, index int) {
	v.dev, v.index, v.kick = d, index, -1
	v.call.eventFDs, v.fault.eventFDs = &d.eventFDs, &d.eventFDs
}

// began takes a ring that was opened with these features, and its kick.
func (v *vring) began(vq *virtq.Device, kick int, features uint64) {
	v.vq, v.kick, v.owed, v.lost = vq, kick, false, false
	v.features, v.hdrLen = features, netHdrLen(features)
}

// unreached has it reported that a chain's memory cannot be reached: once from a start of the ring to the next. It
// never waits.
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

// calls says whether a call is made that is wanted. After one that was lost the next is made with whatever is shown,
// though the driver's event index, which was passed, does not want it: else it would sleep for good, and no fault of
// hardware is that thorough.
func (v *vring) calls(wanted bool) bool {
	if !wanted {
		return false
	}
	v.owed = v.dev.port.InterruptLost()
	return !v.owed
}

// release closes the ring and its kick, and says where the ring was.
func (v *vring) release() (base uint32) {
	v.left = v.vq.Base()
	v.vq.Close()
	v.vq = nil
	scm.Close(v.kick)
	v.kick = -1
	return v.left.State()
}

// closeEventFDs lets go of the eventfds that the frontend wants written.
func (v *vring) closeEventFDs() {
	v.call.set(-1)
	v.fault.set(-1)
}

// vring is the vring of an index.
func (d *Device) vring(index int) *vring {
	if index%2 == 1 {
		return &d.tx[index/2].vring
	}
	return &d.rx[index/2].vring
}
