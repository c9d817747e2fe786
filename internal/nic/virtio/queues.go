package virtio

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

var errNoKick = errors.New("no kick descriptor: polling is not offered")

// StartQueue implements vhostuser.Device.
func (d *Device) StartQueue(v vhostuser.Vring) error {
	if _, err := d.StopQueue(v.Index); err != nil { // StopQueue never fails
		return err
	}
	features := d.features.Load()
	vq, err := d.open(&v, features)
	if err != nil {
		for _, fd := range []int{v.Kick, v.Call, v.Err} {
			scm.Close(fd)
		}
		return fmt.Errorf("vring %d: %w", v.Index, err)
	}
	d.mu.Lock()
	delete(d.stopped, v.Index)
	d.mu.Unlock()
	defer d.setDefaultRSS() // also needed if noteStart has reset the port for a new driver
	d.noteStart(&v, vq.Resumed())
	ring := d.vring(v.Index)
	ring.call.set(v.Call)
	ring.fault.set(v.Err)
	if vq.Resumed() || v.Running {
		ring.call.fire() // an interrupt may have been lost, which would stall the driver after a reconnect
	}
	if v.Index%2 == 1 {
		q := d.tx[v.Index/2]
		q.start(vq, v.Kick, features)
		q.sender.Start(v.Kick, !v.Running) // a ring that has not run yet starts with the first kick
		return nil
	}
	return d.rx[v.Index/2].open(vq, &v, features)
}

func (d *Device) open(v *vhostuser.Vring, f uint64) (*virtq.Device, error) {
	if v.Kick < 0 {
		return nil, errNoKick
	}
	return virtq.NewDevice(d.space, virtq.Config{Size: v.Size, Desc: v.Desc, Avail: v.Avail, Used: v.Used,
		Base:     virtq.BaseOf(v.Base),
		Indirect: f&vhostuser.FeatureIndirect != 0, EventIdx: f&vhostuser.FeatureEventIdx != 0})
}

func (q *rxQueue) open(vq *virtq.Device, v *vhostuser.Vring, features uint64) error {
	q.Lock()
	q.Restart()
	q.start(vq, v.Kick, features)
	q.started, q.staged, q.short = v.Running, false, 0
	q.forget()
	q.mrg, q.csum = features&virtionet.FMrgRxBuf != 0, features&virtionet.FGuestCsum != 0
	q.hadBuffers = vq.Resumed()
	if v.Running {
		q.suppressKicks()
	}
	q.Unlock()
	if err := q.dev.monitor.Watch(v.Kick, v.Index); err != nil {
		q.halt()
		return fmt.Errorf("vring %d: kick: %w", v.Index, err)
	}
	return nil
}

// SetCall implements vhostuser.Device. It fires the new eventfd once: a call to the old one may have been lost.
func (d *Device) SetCall(index, fd int) error {
	call := &d.vring(index).call
	call.set(fd)
	call.fire()
	return nil
}

// SetErr implements vhostuser.Device. It fires the eventfd if the queue has already stopped on an error.
func (d *Device) SetErr(index, fd int) error {
	fault := &d.vring(index).fault
	fault.set(fd)
	d.mu.Lock()
	_, broken := d.stopped[index]
	d.mu.Unlock()
	if broken {
		fault.fire()
	}
	return nil
}

// EnableQueue implements vhostuser.Device.
func (d *Device) EnableQueue(index int, on bool) error {
	if index%2 == 1 {
		d.tx[index/2].enabled.Store(on)
		return nil
	}
	q := d.rx[index/2]
	if !on {
		d.port.FlushRx(index / 2)
	}
	q.Lock()
	q.enabled = on
	q.WakeAll()
	q.Unlock()
	d.setDefaultRSS()
	return nil
}

func (d *Device) setDefaultRSS() {
	d.rssMu.Lock() // so that the last list that the port gets is the latest
	defer d.rssMu.Unlock()
	var used []uint16
	for i, q := range d.rx {
		if q.used() {
			used = append(used, uint16(i))
		}
	}
	d.port.SetDefaultRSS(used)
}

// StopQueue implements vhostuser.Device.
func (d *Device) StopQueue(index int) (base uint32, err error) {
	if index%2 == 1 {
		return d.tx[index/2].shut(), nil
	}
	d.port.FlushRx(index / 2)
	base = d.rx[index/2].shut()
	d.port.FlushRx(index / 2) // for frames that the port still holds: the stopped queue refuses them
	d.setDefaultRSS()
	return base, nil
}

// shut stops the queue and returns where its ring goes on, as StopQueue does. If the queue had a ring, shut closes the
// descriptors that the frontend gave for it.
func (q *txQueue) shut() (base uint32) {
	q.sender.Stop()
	if q.vq == nil {
		return 0
	}
	base = q.release()
	q.closeEventFDs()
	return base
}

func (q *rxQueue) shut() (base uint32) {
	base = q.halt()
	q.closeEventFDs()
	return base
}

func (q *rxQueue) halt() (base uint32) {
	q.Lock()
	defer q.Unlock()
	if q.vq == nil {
		return 0
	}
	q.dev.monitor.Unwatch(q.kick)
	base = q.release()
	q.started = false
	q.trim(0)
	q.buffers, q.header, q.payload = nil, nil, nil
	q.WakeAll()
	return base
}
