package vhostuser

import (
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
)

type backend struct{ conn }

func frontend(t *testing.T) (*Frontend, *backend) {
	t.Helper()
	testkit.CheckFDs(t)
	a, b := testkit.SocketPair(t)
	f, back := NewFrontend(a), &backend{newConn(b)}
	t.Cleanup(func() { f.Close(); b.Close() })
	return f, back
}

func (b *backend) write(t *testing.T, data []byte, fds ...int) {
	t.Helper()
	must(t, b.sock.WriteFDs(data, fds))
}

// next receives a request.
func (b *backend) next(t *testing.T) *message {
	t.Helper()
	var m message
	t.Cleanup(m.fds.Close)
	must(t, b.receive(&m, func(*Header) error { return nil }))
	return &m
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	must(t, err)
	return b
}

// TestFrontendTakesNoBadAnswer: after a wrong answer of the backend, or none, the Frontend uses the connection no more.
func TestFrontendTakesNoBadAnswer(t *testing.T) {
	for _, c := range []struct {
		name, answer string // to GET_VRING_BASE of ring 1, without need_reply
		want         error
	}{
		{"closes", "", io.EOF},
		{"half a header", "0b000000 0500", io.ErrUnexpectedEOF},
		{"half a payload", "0b000000 05000000 08000000 0100", io.ErrUnexpectedEOF},
		{"no reply flag", "0b000000 01000000 08000000 01000000 00000000", ErrBadMessage},
		{"version 2", "0b000000 06000000 08000000 01000000 00000000", ErrBadMessage},
		{"another request", "0a000000 05000000 08000000 01000000 00000000", ErrBadMessage},
		{"short", "0b000000 05000000 04000000 01000000", ErrBadMessage},
		{"long", "0b000000 05000000 ffffffff 01000000 00000000", ErrBadMessage},
		{"another ring", "0b000000 05000000 08000000 02000000 00000000", ErrBadMessage},
		{"packed", "0b000000 05000000 08000000 01000000 00800080", ErrBadMessage},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, back := frontend(t)
			back.write(t, unhex(t, c.answer))
			must(t, back.sock.CloseWrite())
			_, err := f.GetVringBase(1)
			peertest.WantError(t, "GET_VRING_BASE", err, c.want)
			if err := f.SetStatus(1); err == nil {
				t.Error("the connection goes on")
			}
		})
	}
}

func TestFrontendClosesDescriptorsOfAnswers(t *testing.T) {
	f, back := frontend(t)
	fd := eventfd(t)
	back.write(t, raw(GetStatus, Version|FlagReply, u64Body(5)...), fd, fd)
	if s, err := f.GetStatus(); err != nil || s != 5 {
		t.Errorf("%d, %v", s, err)
	}
}

func TestFrontendTimeout(t *testing.T) {
	f, _ := frontend(t)
	f.SetTimeout(time.Nanosecond)
	_, err := f.GetStatus()
	peertest.WantError(t, "status", err, os.ErrDeadlineExceeded)
	f.SetTimeout(0)
	_, err = f.GetStatus() // fails without waiting: the first answer may still come
	peertest.WantError(t, "status", err, os.ErrDeadlineExceeded)
	if err := f.Close(); err == nil {
		t.Error("closed twice")
	}
}

func TestFrontendCloseEndsAWait(t *testing.T) {
	f, back := frontend(t)
	f.SetTimeout(0)
	result := make(chan error)
	go func() {
		_, err := f.GetVringBase(0)
		result <- err
	}()
	back.next(t) // the other goroutine waits, or will soon
	must(t, f.Close())
	peertest.WantError(t, "error", <-result, net.ErrClosed)
}

// TestFrontendTable has no CONFIGURE_MEM_SLOTS: the Frontend sends tables.
func TestFrontendTable(t *testing.T) {
	h, _, l := serving(t)
	if _, p, err := l.Negotiate(testFeatures, uint64(ProtocolReplyAck)); err != nil || p != uint64(ProtocolReplyAck) {
		t.Fatalf("%#x, %v", p, err)
	}
	for i := range uint64(MaxTableRegions) {
		fd, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC)
		must(t, err)
		must(t, unix.Ftruncate(fd, 4096))
		must(t, l.AddMemory(fd, i<<20, i<<30, 4096, 0))
		must(t, unix.Close(fd)) // the Frontend has a duplicate, which it sends again with the next table
	}
	g := newGuest(t)
	peertest.WantError(t, "ninth region", l.AddMemory(g.fd, 1<<40, 1<<40, 4096, 0), errTooLong)
	must(t, l.RemoveMemory(3<<20, 3<<30, 4096))
	if err := l.RemoveMemory(3<<20, 3<<30, 4096); err == nil {
		t.Error("removed twice")
	}
	wantRefused(t, "overlap", l.AddMemory(g.fd, 0, 1<<40, 4096, 0))
	if err := l.AddMemory(-5, 1<<40, 1<<40, 4096, 0); err == nil {
		t.Error("no descriptor")
	}
	must(t, l.AddMemory(g.fd, 1<<40, 1<<40, 4096, 0))
	testkit.Equal(t, "regions", len(h.Space.Regions()), MaxTableRegions)
}

func TestFrontendRefusesBadArguments(t *testing.T) {
	f, _ := frontend(t)
	for _, i := range []int{-1, MaxVrings} {
		_, err := f.GetVringBase(i)
		for _, err := range []error{err, f.SetupVring(VringSetup{Index: i}), f.SetEnable(i, true), f.SetVringAddr(i, 0, 0, 0),
			f.SetVringCall(i, -1), f.SetVringKick(i, -1), f.SetVringErr(i, -1)} {
			peertest.WantError(t, "a ring that there cannot be", err, errTooLong)
		}
	}
	peertest.WantError(t, "error", f.SetConfig(0, make([]byte, MaxConfig+1)), errTooLong)
}

func TestFrontendWithoutProtocolFeatures(t *testing.T) {
	f, back := frontend(t)
	back.write(t, raw(GetFeatures, Version|FlagReply, u64Body(FeatureVersion1|1)...))
	features, protocol, err := f.Negotiate(testFeatures, uint64(allProtocol))
	if features != FeatureVersion1 || protocol != 0 || err != nil {
		t.Errorf("%#x, %#x, %v", features, protocol, err)
	}
	if f, p := f.Features(); f != features || p != 0 {
		t.Errorf("%#x, %v", f, p)
	}
	for _, want := range []Request{GetFeatures, SetOwner, SetFeatures} {
		if m := back.next(t); m.Request != want || m.Flags != Version {
			t.Errorf("%v %v, want %v", m.Request, m.Flags, want)
		}
	}
}

// Negotiate returns io.EOF if the backend hangs up during it.
func TestFrontendNegotiationFails(t *testing.T) {
	for answers := range 5 {
		f, back := frontend(t)
		for _, r := range []Request{GetFeatures, GetProtocolFeatures, GetQueueNum, SetOwner}[:answers] {
			value := uint64(0)
			if r == GetFeatures || r == GetProtocolFeatures {
				value = FeatureProtocol | uint64(ProtocolMQ|ProtocolReplyAck)
			}
			back.write(t, raw(r, Version|FlagReply, u64Body(value)...))
		}
		must(t, back.sock.CloseWrite())
		if _, _, err := f.Negotiate(testFeatures, uint64(allProtocol)); !errors.Is(err, io.EOF) {
			t.Errorf("after %d answers: %v", answers, err)
		}
	}
}
