package driver

import (
	"errors"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: driver: A device that breaks a rule of virtq or virtio_net_hdr at most stops its own
// NIC; the NIC gives each page back exactly once, in a frame or to the PageSource.
func TestBrokenDeviceStopsNIC(t *testing.T) {
	type e = [2]uint32
	for _, c := range []struct {
		name string
		evil func(r *rig)
	}{
		{"receive id out of range", func(r *rig) { r.dev.rawUsed(0, e{1 << 31, 100}) }},
		{"receive id not in flight", func(r *rig) { r.dev.rawUsed(0, e{0, 100}, e{0, 100}) }},
		{"received more than there is room", func(r *rig) { r.dev.rawUsed(0, e{0, hostBuf + 1}) }},
		{"received less than a header", func(r *rig) { r.dev.rawUsed(0, e{0, netHdrLen - 1}) }},
		{"transmit id out of range", func(r *rig) { r.dev.rawUsed(1, e{1 << 31, 0}) }},
		{"transmit id not in flight", func(r *rig) { r.dev.rawUsed(1, e{200, 0}) }},
		{"no buffers", func(r *rig) { r.mangle(0, func(h *netHdr) { h.numBuffers = 0 }) }},
		{"more buffers than the ring", func(r *rig) { r.mangle(0, func(h *netHdr) { h.numBuffers = 257 }) }},
		{"segmentation type not known", func(r *rig) { r.mangle(0, func(h *netHdr) { h.gsoType = 9 }) }},
		{"split: received more than there is room", func(r *rig) { r.dev.rawUsed(2, e{0, 1 << 20}) }},
		{"split: received less than a header", func(r *rig) { r.dev.rawUsed(2, e{0, 3}) }},
		{"split: no chains", func(r *rig) { r.mangle(1, func(h *netHdr) { h.numBuffers = 0 }) }},
		{"split: segmentation type not known", func(r *rig) { r.mangle(1, func(h *netHdr) { h.gsoType = 9 }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			other := newRig(t, rigOptions{})
			r := newRig(t, rigOptions{pairs: 2, pages: 200})
			testkit.OK(t, r.nic.BindQueue(1, 3, r.gpu))
			r.dev.do(func() { r.dev.hold = true })
			r.send(t, 0, TxFrame{Header: tcpHeader(0), Cookie: 77})
			c.evil(r)
			<-r.nic.failed
			if err := r.nic.Err(); !errors.Is(err, ErrBroken) {
				t.Fatalf("Err: %v", err)
			} else {
				t.Log(err)
			}
			r.rcv.wait(func() bool { return r.rcv.wakes > 0 && len(r.rcv.cookies) == 1 })
			checkErr(t, "Transmit", errOf(r.nic.Transmit(0, []TxFrame{{Header: tcpHeader(0)}})), ErrBroken)
			checkErr(t, "UnbindQueue", r.nic.UnbindQueue(1), nil)
			r.gpu.whole(t)
			checkErr(t, "BindQueue", r.nic.BindQueue(1, 3, r.gpu), ErrBroken)
			other.send(t, 0, TxFrame{Header: tcpHeader(100), Linear: make([]byte, 100)})
			other.rcv.waitFrames(1)
		})
	}
}

func (r *rig) mangle(queue int, f func(h *netHdr)) {
	r.dev.do(func() { r.dev.mangle = f })
	r.dev.inject(queue, netHdr{}, tcpHeader(0))
}

func TestFramesTooStrangeAreDropped(t *testing.T) {
	r := newRig(t, rigOptions{driver: func(o *FrontendOptions) { o.RingSize = 64 }})
	r.dev.inject(0, netHdr{}, make([]byte, 13))
	r.dev.inject(0, netHdr{}, make([]byte, maxFrame+1))
	r.dev.inject(0, netHdr{}, tcpHeader(0))
	r.rcv.waitFrames(1)
	if s := r.nic.Stats(); s.Rx[0].Dropped != 2 {
		t.Errorf("%+v", s.Rx[0])
	}
}

func TestLongestFrameIsJoined(t *testing.T) {
	r := newRig(t, rigOptions{driver: func(o *FrontendOptions) { o.RingSize = 64 }})
	for range 20 { // more than an arena holds
		r.dev.inject(0, netHdr{}, append(tcpHeader(0), make([]byte, maxFrame-54)...))
	}
	for _, f := range r.rcv.waitFrames(20) {
		testkit.Equal(t, "bytes", len(f.Header), maxFrame)
	}
}

func TestBackendThatGoesAwayDoesNotHangClose(t *testing.T) {
	r := newBoundRig(t, rigOptions{pages: 100})
	r.gone = true
	r.nic.t.(*frontend).front.Close()
	if err := r.nic.UnbindQueue(1); err == nil {
		t.Error("UnbindQueue: no error")
	}
	if n := r.gpu.out(); n == 0 {
		t.Error("pages were given back that the device may still write")
	}
}

func TestBackendThatHangsUpStopsNIC(t *testing.T) {
	r := newBoundRig(t, rigOptions{pages: 100})
	r.gone = true
	r.dev.hangUp()
	<-r.nic.failed
	checkErr(t, "Err", r.nic.Err(), errHangup)
	r.rcv.wait(func() bool { return r.rcv.wakes > 0 })
}
