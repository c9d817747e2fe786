package virtio_test

import (
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func (g *suiteGuest) ask(seq, n uint32) {
	g.Helper()
	for i := range n {
		f := control.Frame{Dst: wire.ControlMAC, Src: g.mac}
		f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, control.ClassInfo, control.InfoHello, 9, seq+i
		g.Send(0, nictest.Frame{Header: f.Append(nil)})
	}
}

func (g *suiteGuest) answer() (f control.Frame) {
	g.Helper()
	got := g.Receive(0)
	g.OK(f.Parse(got.Bytes()))
	return f
}

// Invariant: nic/virtio: At most 32 answers of the control channel wait for buffers; they are
// dropped when their driver is gone.
func TestAnswersWaitForBuffers(t *testing.T) {
	w := newWorld(t)
	w.Bad.ask(1, 100)
	lost := w.Bad.Port().LostReplies()
	if lost == 0 || lost == 100 {
		t.Fatalf("of 100 answers %d are lost", lost)
	}
	kept := 100 - uint32(lost)
	for i := range kept {
		w.Bad.Post(0, 1)
		if f := w.Bad.answer(); f.Seq != 1+i || f.Errno != 0 {
			t.Fatalf("answer %d: %+v", i, f)
		}
	}
	w.Bad.Post(0, 2)
	w.Bad.ask(200, 1)
	testkit.Equal(t, "answer", w.Bad.answer().Seq, 200)
	testkit.Equal(t, "answers that are lost", w.Bad.Port().LostReplies(), lost)
	w.Moves(t)
}

// Invariant: nic/virtio: At most 32 answers of the control channel wait for buffers; they are
// dropped when their driver is gone.
func TestKeptAnswersDieWithTheirDriver(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"reset": func(w *world) { w.Bad.Port().Reset() },
		"stop": func(w *world) {
			base := w.Bad.base(0)
			testkit.Eventually(w.Bad, "lost replies", func() bool { return w.Bad.Port().LostReplies() >= 3 })
			w.Bad.setup(0, base)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Bad.ask(1, 3)
			end(w)
			w.Bad.Post(0, 4)
			w.Bad.ask(50, 1)
			testkit.Equal(t, "answer", w.Bad.answer().Seq, 50)
			w.Bad.ask(60, 1)
			w.Moves(t)
		})
	}
}
