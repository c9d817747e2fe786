package vfiouser_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/vfiotest"
)

var errStop = errors.New("stopped by the test")

// lost is what the log says when a guest loses its device (gve.md, section 2, "Disconnect").
const lost = "the guest has lost a device"

func TestHangUp(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	m := memory(t, 4096)
	must(t, l.Map(guestIOVA, m))
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 0, event(t)))
	h.dev.take()
	h.dev.onCall(func(method string) {
		if method == "Disconnected" && len(h.space.Regions()) != 1 {
			t.Error("the memory was gone before the device was told")
		}
	})
	must(t, l.hangUp())
	h.dev.wantCalls(t, "Disconnected")
	if s := h.logs.String(); strings.Contains(s, lost) {
		t.Errorf("log: %s", s)
	}
	h.dev.onCall(nil)
	h.friendly()
}

func TestHangUpInAMessage(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	_, err := l.Conn().Write([]byte{1, 2, 3})
	must(t, err)
	if err := l.hangUp(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Serve: %v", err)
	}
	if s := h.logs.String(); strings.Contains(s, lost) {
		t.Errorf("log: %s", s)
	}
}

// Invariant: vfiouser: A server that ends answers what was sent, says what the guest will see, and
// resets no connection.
func TestCancelSaysWhatTheGuestSees(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	must(t, l.Map(guestIOVA, memory(t, 4096)))
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 0, event(t)))
	l.cancel(errStop)
	if err := l.wait(); !errors.Is(err, errStop) {
		t.Errorf("Serve: %v", err)
	}
	if _, err := l.Info(); err == nil {
		t.Error("the server is gone and answers")
	}
	if s := h.logs.String(); !strings.Contains(s, lost) || !strings.Contains(s, "all ones") ||
		!strings.Contains(s, errStop.Error()) {
		t.Errorf("log: %s", s)
	}
	h.friendly()
}

// QEMU waits for the answers to what it has sent, with its lock held: they come, even from a server that ends.
//
// Invariant: vfiouser: A server that ends answers what was sent, says what the guest will see, and
// resets no connection.
func TestCancelAnswersWhatWasSent(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	inRead, goOn := make(chan struct{}), make(chan struct{})
	h.dev.onCall(func(method string) {
		if method == "Read" {
			close(inRead)
			<-goOn
		}
	})
	send := func(id uint16, cmd vfiouser.Command, flags vfiouser.Flags, body []byte, fds ...int) {
		t.Helper()
		must(t, l.Send(vfiotest.Message{Header: vfiouser.Header{ID: id, Command: cmd, Flags: flags}, Body: body, FDs: fds}))
	}
	send(1, vfiouser.CmdRegionRead, 0, vfiotest.Access(0, 0, 4))
	<-inRead
	m := memory(t, 4096)
	send(2, vfiouser.CmdRegionWrite, vfiouser.FlagNoReply, append(vfiotest.Access(0, 0, 1), 1))
	send(3, vfiouser.CmdDMAMap, 0, vfiotest.DMAMap(3, 0, guestIOVA, 4096), m.FD())
	send(4, vfiouser.CmdRegionRead, 0, vfiotest.Access(0, 0, 4))
	l.cancel(errStop)
	h.dev.onCall(nil)
	close(goOn)
	if err := l.wait(); !errors.Is(err, errStop) {
		t.Errorf("Serve: %v", err)
	}
	var got []uint16
	for {
		r, err := l.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("after the answers: %v", err)
			}
			break
		}
		got = append(got, r.ID)
		// Serve notices that it is to end between two messages: before any of those that wait, or after.
		if r.Flags == vfiouser.FlagReply|vfiouser.FlagError && unix.Errno(r.Errno) == unix.ESHUTDOWN && len(r.Body) == 0 &&
			r.ID != 1 {
			continue
		}
		if r.Flags != vfiouser.FlagReply {
			t.Errorf("reply: %+v", r)
		}
	}
	if !slices.Equal(got, []uint16{1, 3, 4}) {
		t.Errorf("answers to %v", got)
	}
	h.friendly()
}

// A message of very many writes keeps no server that is to end: each write may be as much work as a device has to give.
func TestCancelInManyWrites(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	const n = 40_000
	writes := 0
	h.dev.onCall(func(method string) {
		if method == "Write" {
			writes++
			l.cancel(errStop)
		}
	})
	body := le.AppendUint64(nil, n)
	for range n {
		body = append(append(body, vfiotest.Access(0, 0, 1)...), 1, 0, 0, 0, 0, 0, 0, 0)
	}
	must(t, l.Send(vfiotest.Message{Header: vfiouser.Header{ID: 1, Command: vfiouser.CmdRegionWriteMulti}, Body: body}))
	if err := l.wait(); !errors.Is(err, errStop) {
		t.Errorf("Serve: %v", err)
	}
	h.dev.onCall(nil)
	if writes != 1 {
		t.Errorf("%d writes of %d, and the server was to end at the first", writes, n)
	}
	r, err := l.Receive()
	if err != nil || r.ID != 1 || unix.Errno(r.Errno) != unix.ESHUTDOWN {
		t.Errorf("reply %+v, %v", r, err)
	}
	h.friendly()
}

// A machine that was switched off has lost nothing, whatever Serve notices first.
func TestCancelAfterHangUpIsNoLoss(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	inRead, goOn := make(chan struct{}), make(chan struct{})
	h.dev.onCall(func(method string) {
		if method == "Read" {
			close(inRead)
			<-goOn
		}
	})
	must(t, l.Send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionRead},
		Body: vfiotest.Access(0, 0, 4)}))
	<-inRead
	must(t, l.Close())
	l.cancel(errStop)
	close(goOn)
	if err := l.wait(); !errors.Is(err, errStop) {
		t.Errorf("Serve: %v", err)
	}
	if s := h.logs.String(); strings.Contains(s, lost) || !strings.Contains(s, "client disconnected") {
		t.Errorf("log: %s", s)
	}
}

// Whatever the client is sending at that moment, the end of the connection is an end and no reset:
// that QEMU does not survive.
//
// Invariant: vfiouser: A server that ends answers what was sent, says what the guest will see, and
// resets no connection.
func TestCancelUnderTrafficIsNoReset(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	for range 200 {
		l := h.connect()
		moving := make(chan struct{})
		sent := make(chan error, 1)
		go func() {
			write := vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionWrite, Flags: vfiouser.FlagNoReply},
				Body: append(vfiotest.Access(0, 0, 4), 1, 2, 3, 4)}
			for i := 0; ; i++ {
				if err := l.Send(write); err != nil {
					sent <- err
					return
				}
				if i == 10 {
					close(moving)
				}
			}
		}()
		<-moving
		l.cancel(errStop)
		if err := l.wait(); !errors.Is(err, errStop) {
			t.Fatalf("Serve: %v", err)
		}
		<-sent
		if _, err := l.Receive(); !errors.Is(err, io.EOF) {
			t.Fatalf("the client sees %v", err)
		}
		h.dev.take()
	}
	h.friendly()
}

func TestCancelBeforeServe(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.dial()
	l.cancel(errStop)
	if err := l.wait(); !errors.Is(err, errStop) {
		t.Errorf("Serve: %v", err)
	}
	h.friendly()
}

// A client that never reads its answers stops nobody but itself.
func TestClientThatDoesNotRead(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	reads := make(chan struct{}, 1)
	h.dev.onCall(func(method string) {
		select {
		case reads <- struct{}{}:
		default:
		}
	})
	sent := make(chan error, 1)
	go func() {
		for {
			if err := l.Send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionRead},
				Body: vfiotest.Access(0, 0, regsSize)}); err != nil {
				sent <- err
				return
			}
		}
	}()
	<-reads
	l.cancel(errStop)
	if err := l.wait(); !errors.Is(err, errStop) {
		t.Errorf("Serve: %v", err)
	}
	<-sent
	h.dev.onCall(nil)
	h.friendly()
}

// What comes when the device is gone already is answered too.
func TestLateRequestsAreAnswered(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.connect()
	must(t, l.Map(guestIOVA, memory(t, 4096)))
	h.dev.onCall(func(method string) {
		if method != "Disconnected" {
			return
		}
		for id, m := range []vfiotest.Message{
			{Header: vfiouser.Header{Command: vfiouser.CmdRegionRead}, Body: vfiotest.Access(0, 0, 4)},
			{Header: vfiouser.Header{Command: vfiouser.CmdRegionWrite, Flags: vfiouser.FlagNoReply},
				Body: vfiotest.Access(0, 0, 0)},
			{Header: vfiouser.Header{Command: vfiouser.CmdSetIRQs}, Body: vfiotest.IRQSet(0x24, vfiouser.IRQMSIX, 0, 1),
				FDs: []int{0}},
			{Header: vfiouser.Header{Command: vfiouser.CmdDMAUnmap}, Body: vfiotest.DMAUnmap(0, guestIOVA, 4096)},
		} {
			m.ID = uint16(id)
			must(t, l.Send(m))
		}
	})
	l.cancel(errStop)
	if err := l.wait(); !errors.Is(err, errStop) {
		t.Errorf("Serve: %v", err)
	}
	h.dev.onCall(nil)
	for _, id := range []uint16{0, 2, 3} {
		r, err := l.Receive()
		if err != nil || r.ID != id || r.Flags != vfiouser.FlagReply|vfiouser.FlagError ||
			unix.Errno(r.Errno) != unix.ESHUTDOWN || r.Size != vfiouser.HeaderLen {
			t.Errorf("reply %d: %+v, %v", id, r, err)
		}
	}
	if _, err := l.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the answers: %v", err)
	}
	h.friendly()
}
