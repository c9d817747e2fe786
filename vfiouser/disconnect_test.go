package vfiouser_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

// lost begins the message that Serve logs when a guest loses its device.
const lost = "the guest has lost a device"

// drainPatiently makes drainTimeout long enough for a loaded machine, until the end of the test.
func drainPatiently(t *testing.T) { t.Cleanup(vfiouser.SetDrainTimeout(testkit.Patience)) }

// blockRead makes the device's next ReadRegion close inRead, and block until goOn is closed.
func (h *host) blockRead() (inRead, goOn chan struct{}) {
	inRead, goOn = make(chan struct{}), make(chan struct{})
	h.OnCall(func(method string) {
		if method == "Read" {
			close(inRead)
			<-goOn
		}
	})
	return inRead, goOn
}

func TestHangUp(t *testing.T) {
	h, l := serving(t)
	must(t, l.Map(guestIOVA, memory(t, 4096)))
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 0, event(t)))
	h.Take()
	h.OnCall(func(method string) {
		if method == "Disconnected" && len(h.Space.Regions()) != 1 {
			t.Error("the memory was gone before the device was told")
		}
	})
	must(t, l.HangUp())
	h.WantCalls("Disconnected")
	h.wantNotLost()
}

func TestHangUpInAMessage(t *testing.T) {
	h, l := serving(t)
	_, err := l.Conn().Write([]byte{1, 2, 3})
	must(t, err)
	peertest.WantError(t, "Serve", l.HangUp(), io.ErrUnexpectedEOF)
	h.wantNotLost()
}

// Invariant: vfiouser: A server that ends answers every received request that wants a reply, as
// long as the client reads, logs what the guest will see, and resets no connection.
func TestCancelSaysWhatTheGuestSees(t *testing.T) {
	h, l := serving(t)
	must(t, l.Map(guestIOVA, memory(t, 4096)))
	must(t, l.SetIRQ(vfiouser.IRQMSIX, 0, event(t)))
	l.Stop()
	if _, err := l.Info(); err == nil {
		t.Error("the server is gone and answers")
	}
	if s := h.Logs.String(); !strings.Contains(s, lost) || !strings.Contains(s, "all ones") ||
		!strings.Contains(s, peertest.ErrStop.Error()) {
		t.Errorf("log: %s", s)
	}
}

// QEMU waits with its lock held for the answers to its requests.
//
// Invariant: vfiouser: A server that ends answers every received request that wants a reply, as long as the
// client reads, logs what the guest will see, and resets no connection.
func TestCancelAnswersWhatWasSent(t *testing.T) {
	drainPatiently(t)
	h, l := serving(t)
	inRead, goOn := h.blockRead()
	send := func(id uint16, cmd vfiouser.Command, flags vfiouser.Flags, body []byte, fds ...int) {
		t.Helper()
		l.post(t, vfiouser.Header{ID: id, Command: cmd, Flags: flags}, body, fds...)
	}
	send(1, vfiouser.CmdRegionRead, 0, access(0, 0, 4))
	<-inRead
	m := memory(t, 4096)
	send(2, vfiouser.CmdRegionWrite, vfiouser.FlagNoReply, access(0, 0, 1, 1))
	send(3, vfiouser.CmdDMAMap, 0, dmaMap(3, 0, guestIOVA, 4096), m.FD())
	send(4, vfiouser.CmdRegionRead, 0, access(0, 0, 4))
	l.Cancel(peertest.ErrStop)
	h.OnCall(nil)
	close(goOn)
	l.WantEnd(peertest.ErrStop)
	var got []uint16
	for {
		r, err := l.Receive()
		if err != nil {
			peertest.WantError(t, "after the answers", err, io.EOF)
			break
		}
		got = append(got, r.ID)
		// Serve may notice the cancelled context before it reads requests 3 and 4: then they are refused.
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
}

// A message of many writes does not delay a server that is to end.
func TestCancelInManyWrites(t *testing.T) {
	drainPatiently(t)
	h, l := serving(t)
	const n = 40_000
	writes := 0
	h.OnCall(func(method string) {
		if method == "Write" {
			writes++
			l.Cancel(peertest.ErrStop)
		}
	})
	body := multi(n, slices.Repeat(access(0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0), n))
	l.post(t, vfiouser.Header{ID: 1, Command: vfiouser.CmdRegionWriteMulti}, body)
	l.WantEnd(peertest.ErrStop)
	h.OnCall(nil)
	testkit.Equal(t, "writes of a server that was to end at the first", writes, 1)
	r, err := l.Receive()
	if err != nil || r.ID != 1 || unix.Errno(r.Errno) != unix.ESHUTDOWN {
		t.Errorf("reply %+v, %v", r, err)
	}
}

// If the client hangs up first, no loss of a device is logged.
func TestCancelAfterHangUpIsNoLoss(t *testing.T) {
	h, l := serving(t)
	inRead, goOn := h.blockRead()
	l.post(t, vfiouser.Header{Command: vfiouser.CmdRegionRead}, access(0, 0, 4))
	<-inRead
	must(t, l.Close())
	l.Cancel(peertest.ErrStop)
	close(goOn)
	l.WantEnd(peertest.ErrStop)
	if s := h.Logs.String(); strings.Contains(s, lost) || !strings.Contains(s, "client disconnected") {
		t.Errorf("log: %s", s)
	}
}

// QEMU 11.1 does not survive a reset of its connection.
//
// Invariant: vfiouser: A server that ends answers every received request that wants a reply, as long as the
// client reads, logs what the guest will see, and resets no connection.
func TestCancelUnderTrafficIsNoReset(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	for range 200 {
		l := h.connect()
		moving := make(chan struct{})
		sent := make(chan error, 1)
		go func() {
			write := vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionWrite, Flags: vfiouser.FlagNoReply},
				Body: access(0, 0, 4, 1, 2, 3, 4)}
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
		l.Stop()
		<-sent
		if _, err := l.Receive(); !errors.Is(err, io.EOF) {
			t.Fatalf("the client sees %v", err)
		}
		h.Take()
	}
	h.servesAnother()
}

func TestCancelBeforeServe(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	l := h.dial()
	l.Stop()
	h.servesAnother()
}

func TestClientThatDoesNotRead(t *testing.T) {
	h, l := serving(t)
	reads := make(chan struct{}, 1)
	h.OnCall(func(method string) {
		select {
		case reads <- struct{}{}:
		default:
		}
	})
	sent := make(chan error, 1)
	go func() {
		for {
			if err := l.Send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionRead},
				Body: access(0, 0, regsSize)}); err != nil {
				sent <- err
				return
			}
		}
	}()
	<-reads
	l.Stop()
	<-sent
}

// Requests that arrive during Disconnected and want a reply are refused with ESHUTDOWN.
func TestLateRequestsAreAnswered(t *testing.T) {
	drainPatiently(t)
	h, l := serving(t)
	must(t, l.Map(guestIOVA, memory(t, 4096)))
	h.OnCall(func(method string) {
		if method != "Disconnected" {
			return
		}
		for id, m := range []vfiotest.Message{
			{Header: head(vfiouser.CmdRegionRead, 0), Body: access(0, 0, 4)},
			{Header: head(vfiouser.CmdRegionWrite, vfiouser.FlagNoReply), Body: access(0, 0, 0)},
			{Header: head(vfiouser.CmdSetIRQs, 0), Body: irqSet(0x24, vfiouser.IRQMSIX, 0, 1), FDs: []int{0}},
			{Header: head(vfiouser.CmdDMAUnmap, 0), Body: dmaUnmap(0, guestIOVA, 4096)},
		} {
			m.ID = uint16(id)
			must(t, l.Send(m))
		}
	})
	l.Stop()
	h.OnCall(nil)
	for _, id := range []uint16{0, 2, 3} {
		r, err := l.Receive()
		if err != nil || r.ID != id || r.Flags != vfiouser.FlagReply|vfiouser.FlagError ||
			unix.Errno(r.Errno) != unix.ESHUTDOWN || r.Size != vfiouser.HeaderLen {
			t.Errorf("reply %d: %+v, %v", id, r, err)
		}
	}
	_, err := l.Receive()
	peertest.WantError(t, "after the answers", err, io.EOF)
}
