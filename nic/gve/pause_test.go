package gve

import (
	"reflect"
	"testing"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/splitter"
)

// A transfer from one GPU's memory to another's goes on over ten stops and conts of the receiver. QEMU says nothing of
// these to a vfio-user device: the guest rings no doorbell and takes no interrupt for a while. What comes meanwhile
// fills the buffers that it has posted, and the rest waits.
//
// Invariant: nic: A paused guest finds its NIC as it was.
func TestTransferGoesOnOverPauses(t *testing.T) {
	w := newPatientWorld(t)
	nictest.SplitTo(t, w.B, 1, 2000)
	p := w.B.Port()
	pd := testkit.Must(p.AddPD())(t)
	cq := testkit.Must(p.AddCQ(16))(t)
	qpn := testkit.Must(p.AddQP(control.QP{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}))(t)
	state, generation := p.State(), p.Generation()
	seq := uint32(0)
	var frames []nictest.Frame
	add := func() {
		seq++
		f := nictest.Make(w.B.mac, w.A.mac, nictest.Spec{Payload: 2000, Seq: seq * 2000,
			Flags: splitter.ACK | splitter.PSH}) // which is merged with none
		frames = append(frames, f)
		w.A.Queue(0, f)
	}
	arrive := func() {
		t.Helper()
		if got := nictest.Arrives(t, w.B, 1, &frames[0]); !got.Split {
			t.Error("a frame that is not split")
		}
		frames = frames[1:]
	}
	for range 10 {
		w.B.Post(1, 2)
		busy := w.B.Port().Link().Counters().Busy
		for range 5 { // to a guest that is stopped
			add()
		}
		testkit.Eventually(t, "frames that wait", func() bool { return w.B.Port().Link().Counters().Busy > busy })
		arrive()
		arrive()
		w.B.Post(1, 3)
		w.A.Sent(0)
		for range 3 {
			arrive()
		}
	}
	rx, _ := p.QueueCounters(1)
	if rx.Packets != 50 || rx.DeviceBytes != 50*2000 || rx.HostBytes != 0 || rx.Drops != 0 {
		t.Errorf("%+v", rx)
	}
	if _, err := p.QPStatus(qpn); err != nil || p.Generation() != generation || !reflect.DeepEqual(p.State(), state) {
		t.Errorf("%v, %+v", err, p.State())
	}
}
