package kernel

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller waits for events of a device's sockets, by epoll. Go's own poller refuses to wait for reads
// after an event with only EPOLLERR, here a completion on the error queue (runtime/netpoll.go, setEventErr).
type poller struct {
	ep   *os.File
	raw  syscall.RawConn
	done chan struct{}

	mu    sync.Mutex
	socks map[int32]*sock // by descriptor
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // os.NewFile then polls it
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{ep: os.NewFile(uintptr(fd), "epoll"), done: make(chan struct{}), socks: map[int32]*sock{}}
	if p.raw, err = p.ep.SyscallConn(); err != nil {
		_ = p.ep.Close()
		return nil, err
	}
	go p.run()
	return p, nil
}

func (p *poller) run() {
	defer close(p.done)
	var events [64]unix.EpollEvent
	for {
		n := 0
		err := p.raw.Read(func(fd uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(fd), events[:], 0)
			return n > 0 && err == nil
		})
		if err != nil {
			return // the poller is closed
		}
		p.mu.Lock()
		for _, e := range events[:n] {
			// If the socket was closed, another one may have its descriptor: its calls try again in vain.
			if s := p.socks[e.Fd]; s != nil {
				s.notify(e.Events)
			}
		}
		p.mu.Unlock()
	}
}

func (p *poller) close() {
	_ = p.ep.Close()
	<-p.done
}

func (p *poller) control(op, fd int, e *unix.EpollEvent) error {
	var err error
	if cerr := p.raw.Control(func(ep uintptr) { err = unix.EpollCtl(int(ep), op, fd, e) }); cerr != nil {
		return net.ErrClosed
	}
	return os.NewSyscallError("epoll_ctl", err)
}

type sock struct {
	p      *poller
	closed chan struct{}
	// After a signal, reads (rsig), writes (wsig), or reads of completions (esig) should try again.
	rsig, wsig, esig chan struct{}

	mu sync.RWMutex // held for reading during system calls
	fd int          // -1 after close or detach (linger.go)
}

// newSock makes a sock that owns fd. If newSock returns an error, it has closed fd.
func (p *poller) newSock(fd int) (*sock, error) {
	s := &sock{
		p: p, fd: fd, closed: make(chan struct{}),
		rsig: make(chan struct{}, 1), wsig: make(chan struct{}, 1), esig: make(chan struct{}, 1),
	}
	p.mu.Lock()
	p.socks[int32(fd)] = s
	p.mu.Unlock()
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)}
	if err := p.control(unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// notify signals the channels that events concern. The caller holds the poller's lock.
func (s *sock) notify(events uint32) {
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		signal(s.rsig)
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		signal(s.wsig)
	}
	if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		signal(s.esig)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// on calls f with the descriptor and returns its error; f must not wait. After close or detach it returns
// net.ErrClosed without a call of f.
func (s *sock) on(f func(fd int) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.fd < 0 {
		return net.ErrClosed
	}
	return f(s.fd)
}

// close waits until no call uses the descriptor, and closes it. After close or detach it returns net.ErrClosed.
func (s *sock) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return net.ErrClosed
	}
	fd := s.fd
	s.invalidate()
	return os.NewSyscallError("close", unix.Close(fd)) // also removes it from epoll
}

// invalidate ends the use of the descriptor. The caller holds mu.
func (s *sock) invalidate() {
	close(s.closed)
	s.p.mu.Lock()
	delete(s.p.socks, int32(s.fd))
	s.p.mu.Unlock()
	s.fd = -1
}
