package nic

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Sleeper lets a transmit worker, which owns its thread, sleep in ppoll until it is woken, its
// driver kicks it, or time is up: the netpoller is not involved, and it wakes sooner this way. Its
// protocol is Park, look, Sleep or Unpark (see event).
type Sleeper struct {
	event
	kicks EventReader
	fds   [2]unix.PollFd
	wait  unix.Timespec
}

// NewSleeper makes a Sleeper.
func NewSleeper() (*Sleeper, error) {
	s := new(Sleeper)
	if err := s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

// Sleep sleeps until it is woken, until there is a signal in kick, a frontend's eventfd (-1: none),
// or for at most d (forever if negative). It may end early. It takes the signals, and tells whether
// kick had any.
func (s *Sleeper) Sleep(kick int, d time.Duration) (kicked bool, err error) {
	defer s.Unpark()
	var ts *unix.Timespec
	if d >= 0 {
		s.wait = unix.NsecToTimespec(int64(d))
		ts = &s.wait
	}
	s.fds[0] = unix.PollFd{Fd: int32(s.file.fd), Events: unix.POLLIN}
	s.fds[1] = unix.PollFd{Fd: int32(kick), Events: unix.POLLIN} // ppoll skips -1
	if _, err = unix.Ppoll(s.fds[:], ts, nil); err == unix.EINTR {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("ppoll", err)
	}
	if s.fds[0].Revents != 0 {
		s.consume()
	}
	return s.fds[1].Revents != 0 && s.kicks.Consume(kick), nil
}
