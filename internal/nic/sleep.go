package nic

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Sleeper lets a goroutine sleep in ppoll, not in Go's netpoller, until Wake is called, a driver kicks, or time
// is up. The protocol is Park, look for work, Sleep or Unpark (see event).
type Sleeper struct {
	event
	port    uint32 // result of PortSerial: the wire.Link.Serial of a port; 0: no port
	kicks   EventReader
	fds     [2]unix.PollFd
	watched [1]*Patience
	nap     nap
}

// NewSleeper makes a Sleeper.
func NewSleeper() (*Sleeper, error) {
	s := new(Sleeper)
	if err := s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

// PortSerial implements PortWaker.
func (s *Sleeper) PortSerial() uint32 { return s.port }

// Sleep sleeps until Wake, until a signal in kick (a frontend's eventfd; -1: none), or for at most d (negative:
// no limit). It may end early. It consumes the signals, calls Unpark, and reports whether kick had a signal.
func (s *Sleeper) Sleep(kick int, d time.Duration) (kicked bool, err error) {
	return s.sleep(kick, d, nil)
}

// sleep is Sleep, during which p, if not nil, looks at the clock once a Step (Patience.Pass).
func (s *Sleeper) sleep(kick int, d time.Duration, p *Patience) (kicked bool, err error) {
	defer s.Unpark()
	s.fds[0] = unix.PollFd{Fd: int32(s.file.fd), Events: unix.POLLIN}
	s.fds[1] = unix.PollFd{Fd: int32(kick), Events: unix.POLLIN} // ppoll ignores -1
	s.watched[0] = p
	if err = s.nap.poll(s.fds[:], d, s.watched[:]); err != nil {
		return false, err
	}
	if s.fds[0].Revents != 0 {
		s.consume()
	}
	return s.fds[1].Revents != 0 && s.kicks.Consume(kick), nil
}

type nap struct {
	step unix.Timespec
}

// poll waits until there is an event of fds, or for d (negative: no limit). It may return early. Meanwhile all
// non-nil Patiences in watch look at the clock once in the shortest of their Steps.
func (n *nap) poll(fds []unix.PollFd, d time.Duration, watch []*Patience) error {
	step := time.Duration(-1)
	for _, p := range watch {
		if p != nil && (step < 0 || p.Step() < step) {
			step = p.Step()
		}
	}
	var end time.Time
	if d >= 0 && step >= 0 {
		end = time.Now().Add(d)
	}
	for {
		turn := d
		if step >= 0 && (d < 0 || step < d) {
			turn = step
		}
		var ts *unix.Timespec
		if turn >= 0 {
			n.step = unix.NsecToTimespec(int64(turn))
			ts = &n.step
		}
		ready, err := unix.Ppoll(fds, ts, nil)
		switch {
		case err == unix.EINTR:
			for i := range fds {
				fds[i].Revents = 0 // after an error the kernel has not set Revents
			}
			return nil
		case err != nil:
			return os.NewSyscallError("ppoll", err)
		case ready > 0 || turn == d:
			return nil
		}
		now := time.Now()
		for _, p := range watch {
			if p != nil {
				p.Pass(now, true)
			}
		}
		if d >= 0 {
			d = max(0, end.Sub(now))
		}
	}
}
