package stack_test

import (
	"errors"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: stack: A binding is not done while the NIC may write to its pages.
func TestBindingIsNotDoneWhileTheNICHasItsPages(t *testing.T) {
	for _, again := range []bool{true, false} { // true: the binding is done at a second Close; false: at Stack.Close
		w := newRig(t, stacktest.Options{})
		buf := testkit.Must(w.b.Register(0, 0, 1<<20))(t)
		rx, err := w.b.BindRX(buf, 1, 2)
		testkit.OK(t, err)
		_, err = w.b.AddFlow(devmem.Flow{Queue: 1, Dst: w.addr(7)})
		testkit.OK(t, err)
		ca, cb := w.connect(7, false)
		w.nb.KeepQueues(syscall.ETIMEDOUT)
		if err := rx.Close(); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Fatal(err)
		}
		write(t, ca, "late")
		f := frag(t, cb, 4)
		if string(w.nb.Memory()[f.Off:][:4]) != "late" {
			t.Fatalf("%+v", f)
		}
		if n, err := cb.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for _, b := range w.b.Stats().Bindings {
			if !b.Closed || b.Posted == 0 {
				t.Errorf("%+v", b)
			}
		}
		select {
		case <-rx.Done():
			t.Error("done")
		default:
		}
		testkit.ErrorIs(t, buf.Close(), syscall.EBUSY, "close of the buffer")
		if _, err := w.b.BindRX(buf, 1); err == nil {
			t.Error("a queue that the NIC keeps is bound again")
		}
		if again {
			w.nb.KeepQueues(nil)
			testkit.OK(t, rx.Close())
		} else if err := w.b.Close(); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Error(err)
		}
		<-rx.Done()
	}
}

func TestCloseUndoesBindingsAtTheNIC(t *testing.T) {
	w := newRig(t, stacktest.Options{})
	buf := testkit.Must(w.b.Register(0, 0, 1<<20))(t)
	rx := testkit.Must(w.b.BindRX(buf, 1))(t)
	testkit.OK(t, w.b.Close())
	<-rx.Done()
	if _, bindings := w.nb.Left(); bindings > 0 {
		t.Errorf("the NIC knows %d bindings", bindings)
	}
}
