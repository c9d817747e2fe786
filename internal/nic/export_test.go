package nic

import "golang.org/x/sys/unix"

// Signaled reports whether the sleeper's own eventfd has signals.
func (s *Sleeper) Signaled() bool {
	p := []unix.PollFd{{Fd: int32(s.file.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1
}

func (fds *EventFDs) Open() bool {
	fds.mu.Lock()
	defer fds.mu.Unlock()
	return len(fds.open)+len(fds.ended) > 0
}

func (p *Pollers) Loads() (loads []int) {
	for _, t := range p.threads {
		loads = append(loads, int(t.load.Load()))
	}
	return loads
}
