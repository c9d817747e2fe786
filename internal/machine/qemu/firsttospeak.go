package qemu

import (
	"net"
	"sync"
	"time"
)

// firstToSpeak is one of several connections: the one on which the guest sends first, or, if all end without data, the
// last to end. When it is picked, the others are closed; until then writes fail.
type firstToSpeak struct {
	conns  []net.Conn
	picked chan struct{} // closed when conn, first and err are set

	mu    sync.Mutex
	left  int // under mu: how many connections' first reads have not returned
	conn  net.Conn
	first []byte // data read from conn, not yet returned by Read
	err   error  // of the first read from conn
}

func newFirstToSpeak(conns ...net.Conn) *firstToSpeak {
	e := &firstToSpeak{conns: conns, picked: make(chan struct{}), left: len(conns)}
	for _, c := range conns {
		go e.wait(c)
	}
	return e
}

func (e *firstToSpeak) wait(c net.Conn) {
	b := make([]byte, 4096)
	n, err := c.Read(b)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left--
	if e.conn != nil || n == 0 && e.left > 0 {
		return
	}
	e.conn, e.first, e.err = c, b[:n], err
	close(e.picked)
	for _, other := range e.conns {
		if other != c {
			_ = other.Close()
		}
	}
}

// Read implements agent.Conn.
func (e *firstToSpeak) Read(b []byte) (int, error) {
	<-e.picked
	if len(e.first) > 0 {
		n := copy(b, e.first)
		e.first = e.first[n:]
		return n, nil
	}
	if e.err != nil {
		return 0, e.err
	}
	return e.conn.Read(b)
}

// Write implements agent.Conn.
func (e *firstToSpeak) Write(b []byte) (int, error) {
	select {
	case <-e.picked:
		return e.conn.Write(b)
	default:
		return 0, net.ErrClosed
	}
}

// Close implements agent.Conn.
func (e *firstToSpeak) Close() error {
	var err error
	for _, c := range e.conns {
		if cerr := c.Close(); err == nil && c == e.one() {
			err = cerr
		}
	}
	return err
}

// one returns the picked connection, or the first one before that.
func (e *firstToSpeak) one() net.Conn {
	select {
	case <-e.picked:
		return e.conn
	default:
		return e.conns[0]
	}
}

// SetWriteDeadline implements agent.Conn.
func (e *firstToSpeak) SetWriteDeadline(t time.Time) error { return e.one().SetWriteDeadline(t) }
