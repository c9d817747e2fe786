package qemu

import (
	"io"
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestGuestPicksItsChannel(t *testing.T) {
	for pick := range 2 {
		ignore := goleak.IgnoreCurrent()
		var hosts, guests [2]net.Conn
		for i := range hosts {
			hosts[i], guests[i] = net.Pipe()
		}
		e := newFirstToSpeak(hosts[:]...)
		if _, err := e.Write([]byte("x")); err == nil {
			t.Error("written before anybody reads")
		}
		go func() {
			_, _ = io.WriteString(guests[pick], "hello")
			b := make([]byte, 1)
			_, _ = io.ReadFull(guests[pick], b)
			_, _ = guests[pick].Write(append(b, '!'))
		}()
		b := make([]byte, 3) // shorter than what the guest sends
		for _, want := range []string{"hel", "lo"} {
			if n, err := e.Read(b); err != nil || string(b[:n]) != want {
				t.Errorf("%q, %v", b[:n], err)
			}
		}
		if n, err := guests[1-pick].Read(b); err == nil {
			t.Errorf("the other one is open: %d bytes", n)
		}
		if _, err := e.Write([]byte("y")); err != nil {
			t.Error(err)
		}
		if n, err := e.Read(b); err != nil || string(b[:n]) != "y!" {
			t.Errorf("%q, %v", b[:n], err)
		}
		_ = e.Close()
		_ = guests[pick].Close()
		if _, err := e.Read(b); err == nil {
			t.Error("read after its end")
		}
		goleak.VerifyNone(t, ignore)
	}
}

func TestChannelThatNobodyPicksEnds(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	a, b := net.Pipe()
	c, d := net.Pipe()
	e := newFirstToSpeak(a, c)
	_ = b.Close()
	_ = d.Close()
	if n, err := e.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes", n)
	}
	_ = e.Close()
}
