package uplink

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/ownports"
	"vnic.dev/vnic/internal/sockfile"
)

// stream is a connection to one peer at a time.
type stream struct {
	o       *Stream
	longest int
	count   *counters
	l       net.Listener // nil: this side connects to the peer
	remove  func() error // removes the file of a Unix listener; nil: there is none

	mu     sync.Mutex
	peer   *peer // under mu, as closed; nil: none
	closed bool

	pieces [outBatch][]byte

	came  nic.LogLimit // about peers that connect
	quiet nic.LogLimit // about peers that leave, and failures of Accept
}

type peer struct {
	conn net.Conn
	raw  *rawWriter
}

func openStream(o *Stream, longest int, count *counters,
	keep func(path string, dir bool) (func() error, error)) (carrier, error) {
	s := &stream{o: o, longest: longest, count: count}
	if o.Connect != "" {
		c, err := net.DialTimeout(network(o.Connect), o.Connect, limits.Uplink.Here())
		if err != nil {
			return nil, fmt.Errorf("%w: start the listener there first", err)
		}
		if err := s.connected(c); err != nil {
			return nil, err
		}
		return s, nil
	}
	if err := s.listen(keep); err != nil {
		return nil, err
	}
	return s, nil
}

// listen opens the listening socket. It first removes the file of a Unix socket that a dead process has left.
func (s *stream) listen(keep func(string, bool) (func() error, error)) (err error) {
	addr := s.o.Listen
	if network(addr) != "unix" {
		l, err := net.Listen(network(addr), addr)
		if err != nil {
			return err
		}
		s.l = ownports.Listener(l)
		if a, ok := s.l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
			s.count.log.Warn("the uplink's socket is reachable from the network, and the first peer to connect gets the "+
				"uplink; for this machine alone, listen at 127.0.0.1 or a file", "at", a.String())
		}
		return nil
	}
	if err := sockfile.RemoveStale(addr); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	l, err := sockfile.Bind(addr)
	if err != nil {
		return err
	}
	s.l = l
	s.remove = func() error { return os.Remove(addr) }
	if keep != nil {
		if s.remove, err = keep(addr, false); err != nil {
			return errors.Join(err, s.l.Close(), os.Remove(addr))
		}
	}
	return nil
}

func (s *stream) mtu() (n int, why string) { return 0, "" }

func (s *stream) room() int { return streamLen }

// connected makes c the peer. If it returns an error, it has closed c.
func (s *stream) connected(c net.Conn) error {
	p := &peer{conn: c}
	var err error
	if sc, ok := c.(syscall.Conn); ok {
		p.raw, err = newRawWriter(sc)
	} else {
		err = fmt.Errorf("%T is no socket", c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		err = net.ErrClosed
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	s.peer = p
	return nil
}

func (s *stream) now() *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer
}

// read implements carrier. A listening stream serves one peer after another, until it is closed; a connecting one ends
// with its peer.
func (s *stream) read(in func([]byte)) error {
	for {
		if s.l != nil {
			c, err := s.l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			if err != nil { // for example, no descriptors left
				s.quiet.Log(s.count.log, slog.LevelWarn, "no connection", "err", err)
				time.Sleep(100 * time.Millisecond)
				continue
			}
			if err := s.connected(c); err != nil {
				return err
			}
			s.came.Log(s.count.log, slog.LevelInfo, "peer connected", "from", c.RemoteAddr())
		}
		err := s.frames(s.now().conn, in)
		s.mu.Lock()
		p := s.peer
		s.peer = nil
		s.mu.Unlock()
		_ = p.conn.Close()
		if s.l == nil {
			return err
		}
		s.quiet.Log(s.count.log, slog.LevelWarn, "peer is gone, and another may come", "err", err)
	}
}

// frames passes the frames of a connection to in, until an error, which it returns.
func (s *stream) frames(c net.Conn, in func([]byte)) error {
	cut := newCutter(s.longest)
	for {
		n, err := c.Read(cut.room())
		if err != nil {
			return fmt.Errorf("the peer has hung up: %w", err)
		}
		cut.filled(n)
		for {
			f, why, more, err := cut.next()
			if err != nil {
				return err
			}
			if why != none {
				s.count.refuse(why)
				continue
			}
			if !more {
				break
			}
			in(f)
		}
	}
}

// write implements carrier. After an error the remaining frames are lost, and count as one frame, or as none if this
// side has closed the connection.
func (s *stream) write(fs []*frame, wait func()) {
	p := s.now()
	if p == nil {
		for range fs {
			s.count.refuse(noPeer)
		}
		return
	}
	rest := s.pieces[:0]
	for _, f := range fs {
		putLength(f.b, f.n-streamLen)
		rest = append(rest, f.b[:f.n])
	}
	for len(rest) > 0 {
		n, err := p.raw.write(rest, wait)
		if err != nil {
			_ = p.conn.Close() // so that read returns
			if !errors.Is(err, net.ErrClosed) {
				s.count.refuse(notSent, "err", err)
			}
			return
		}
		for len(rest) > 0 && n >= len(rest[0]) {
			n, rest = n-len(rest[0]), rest[1:]
		}
		if n > 0 {
			rest[0] = rest[0][n:]
		}
	}
}

func (s *stream) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.peer != nil {
		_ = s.peer.conn.Close()
	}
	if s.l != nil {
		_ = s.l.Close()
	}
	if s.remove != nil {
		err = s.remove()
	}
	return err
}
