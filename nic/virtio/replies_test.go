package virtio_test

import (
	"runtime"
	"testing"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/wire"
)

// ask sends requests with numbers from seq on, and does not wait for the answers.
func (g *suiteGuest) ask(seq, n uint32) {
	g.t.Helper()
	for i := range n {
		f := control.Frame{Dst: wire.ControlMAC, Src: g.mac}
		f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, control.ClassInfo, control.InfoHello, 9, seq+i
		g.Send(0, nictest.Frame{Header: f.Append(nil)})
	}
}

func (g *suiteGuest) answer() (f control.Frame) {
	g.t.Helper()
	got := g.Receive(0)
	g.must(f.Parse(got.Bytes()))
	return f
}

// Answers that find no buffer come when there are some, once each and in order; only so many are kept.
//
// Invariant: nic/virtio: Answers of the control channel wait for buffers, and die with their
// driver.
func TestAnswersWaitForBuffers(t *testing.T) {
	w := newWorld(t)
	w.bad.ask(1, 100)
	lost := w.bad.Port().LostReplies()
	if lost == 0 || lost == 100 {
		t.Fatalf("of 100 answers %d are lost", lost)
	}
	kept := 100 - uint32(lost)
	for i := range kept { // one by one
		w.bad.Post(0, 1)
		if f := w.bad.answer(); f.Seq != 1+i || f.Errno != 0 {
			t.Fatalf("answer %d: %+v", i, f)
		}
	}
	w.bad.Post(0, 2)
	w.bad.ask(200, 1)
	if f := w.bad.answer(); f.Seq != 200 {
		t.Errorf("answer %+v", f)
	}
	if n := w.bad.Port().LostReplies(); n != lost {
		t.Errorf("%d answers are lost, then %d", lost, n)
	}
	w.moves(t)
}

// A reset forgets answers that are kept, and a queue that stops has no more of them.
//
// Invariant: nic/virtio: Answers of the control channel wait for buffers, and die with their
// driver.
func TestKeptAnswersDieWithTheirDriver(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"reset": func(w *world) { w.bad.Port().Reset() },
		"stop": func(w *world) {
			base, err := w.bad.front.GetVringBase(0)
			w.bad.must(err)
			for w.bad.Port().LostReplies() < 3 {
				runtime.Gosched()
			}
			w.bad.setup(0, base)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.bad.ask(1, 3)
			end(w)
			w.bad.Post(0, 4)
			w.bad.ask(50, 1)
			if f := w.bad.answer(); f.Seq != 50 {
				t.Errorf("answer %+v", f)
			}
			w.bad.ask(60, 1)
			w.moves(t)
		})
	}
}
