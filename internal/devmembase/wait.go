package devmembase

import (
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/diagnosis"
)

// IsClosed reports whether c, a channel on which nothing is sent, is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// AddrPort returns the address and port of an end of a connection, as Unmap converts them, and zero values if a has
// none.
func AddrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		return Unmap(t.AddrPort())
	}
	p, _ := netip.ParseAddrPort(a.String())
	return Unmap(p)
}

// Unmap converts an IPv4-mapped IPv6 address to IPv4, and returns other addresses as they are.
func Unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// OpError wraps an error of a TCP connection in a *net.OpError, with diagnosis.Ended's explanation. It returns nil
// and io.EOF as they are.
func OpError(op string, err error, local, remote net.Addr) error {
	if err == nil || err == io.EOF {
		return err
	}
	if e, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, e)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: local, Addr: remote, Err: diagnosis.Ended(err, remote)}
}

// Stall detects that a connection makes no progress while a call waits for it.
type Stall struct {
	Limit    time.Duration // of the time without progress; 0: none
	Progress func() uint64 // a number that changes with each byte received or acknowledged
	// Stalled returns the error of a call after Limit; idle is the time since the last progress.
	Stalled func(idle time.Duration) error
	// Tick may be nil. If Limit is set, Begin and Check call it with the time since the last progress.
	Tick func(idle time.Duration)

	last  uint64
	since time.Time // when Begin or Check first saw that Progress returned last
}

// Begin begins a wait.
func (s *Stall) Begin() {
	if s.Limit > 0 {
		s.last, s.since = s.Progress(), time.Now()
		s.tick(0)
	}
}

func (s *Stall) tick(idle time.Duration) {
	if s.Tick != nil {
		s.Tick(idle)
	}
}

// Check calls Tick, and returns Stalled's error if there was no progress for Limit. Without a Limit it does nothing.
func (s *Stall) Check(now time.Time) error {
	if s.Limit == 0 {
		return nil
	}
	if p := s.Progress(); p != s.last {
		s.last, s.since = p, now
	}
	idle := now.Sub(s.since)
	s.tick(idle)
	if idle < s.Limit {
		return nil
	}
	return s.Stalled(idle)
}

// Wait waits for a signal on sig, or that sig is closed, and then returns nil. It returns net.ErrClosed once
// closed is closed, os.ErrDeadlineExceeded once deadline is closed, and an error of [Stall.Check], which it calls
// at intervals.
func (s *Stall) Wait(sig, closed, deadline <-chan struct{}) error {
	var tick <-chan time.Time
	s.Begin()
	if s.Limit > 0 {
		t := time.NewTicker(max(s.Limit/8, time.Millisecond))
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-sig:
			return nil
		case <-closed:
			return net.ErrClosed
		case <-deadline:
			return os.ErrDeadlineExceeded
		case now := <-tick:
			if err := s.Check(now); err != nil {
				return err
			}
		}
	}
}
