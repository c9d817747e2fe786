package nbd

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// answerTo is a reply of the server: header and data.
type answerTo struct {
	n     int  // number of answers on the connection before this one
	write bool // the request is a write or a flush
	b     []byte
	end   bool
}

// server is an NBD server that encodes messages by the protocol document, not by the client's functions.
type server struct {
	flags                uint16
	minBlock, maxPayload uint32 // minBlock 0: neither is announced
	description          string
	seed                 uint64                         // of the order of answers
	batch                int                            // most requests to answer together; 0: up to 64 that came
	reads, writes        int                            // if batch is set: requests of each kind that are still to come
	status               func(n int, write bool) uint32 // error value of answer n, except to a flush
	bend                 func(a *answerTo)              // may change an answer
	flushed              uint32                         // error value of the answers to flushes
	small                bool
	greet                func(c net.Conn) bool // replaces the handshake; false: the connection ends
	clients              int                   // the most connections to serve; 0: any number

	l    net.Listener
	addr netip.AddrPort
	work sync.WaitGroup

	mu      sync.Mutex
	store   []byte
	conns   []net.Conn
	discs   int // number of NBD_CMD_DISC received
	aborts  int // number of NBD_OPT_ABORT received
	flushes int
}

// patterned is nbdkit's pattern: each 8 bytes are their own offset, big endian.
var patterned = sync.OnceValue(func() []byte {
	b := make([]byte, 8<<20)
	for off := 0; off < len(b); off += 8 {
		binary.BigEndian.PutUint64(b[off:], uint64(off))
	}
	return b
})

func pattern(n int) []byte { return slices.Clone(patterned()[:n]) }

func (s *server) start(t testing.TB) {
	t.Helper()
	x, _ := testkit.Loopback()
	s.l = testkit.Must(net.Listen("tcp", netip.AddrPortFrom(x, 0).String()))(t)
	s.addr = s.l.Addr().(*net.TCPAddr).AddrPort()
	if s.flags == 0 {
		s.flags = 1 | 1<<2 | 1<<8
	}
	s.work.Go(func() {
		for {
			c, err := s.l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			many := s.clients > 0 && len(s.conns) >= s.clients
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			if many {
				continue
			}
			s.work.Go(func() {
				defer c.Close()
				s.serve(c)
			})
		}
	})
	t.Cleanup(s.stop)
}

func (s *server) stop() {
	_ = s.l.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) get(f func() int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

func (s *server) serve(c net.Conn) {
	if s.small {
		_ = c.(*net.TCPConn).SetReadBuffer(32 << 10)
		_ = c.(*net.TCPConn).SetWriteBuffer(16 << 10)
	}
	if s.greet != nil && !s.greet(c) || s.greet == nil && !s.shake(c) {
		return
	}
	room := 2048
	if s.small {
		room = 4
	}
	requests := make(chan asked, room)
	s.work.Go(func() {
		defer close(requests)
		for s.ask(c, requests) {
		}
	})
	r := rand.New(rand.NewPCG(s.seed, 1))
	sent := 0
	for list := s.gather(requests); len(list) > 0; list = s.gather(requests) {
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		var out []byte
		for _, q := range list {
			a := answerTo{n: sent, write: q.typ != 0}
			s.answer(&a, q)
			sent++
			s.mu.Lock()
			bend := s.bend
			s.mu.Unlock()
			if bend != nil {
				bend(&a)
			}
			out = append(out, a.b...)
			if a.end {
				_, _ = c.Write(out)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				for range requests { // wait until the receiving goroutine ends
				}
				return
			}
		}
		if _, err := c.Write(out); err != nil {
			break
		}
	}
	_ = c.Close()
	for range requests {
	}
}

func optMessage(option, typ uint32, data []byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, 0x3e889045565a9)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, typ)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func greeting(flags uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte("NBDMAGICIHAVEOPT"), flags)
}

func (s *server) exported() (b []byte) {
	info := binary.BigEndian.AppendUint64([]byte{0, 0}, uint64(s.get(func() int { return len(s.store) })))
	b = optMessage(7, 3, binary.BigEndian.AppendUint16(info, s.flags))
	if s.minBlock != 0 {
		info = binary.BigEndian.AppendUint32([]byte{0, 3}, s.minBlock)
		info = binary.BigEndian.AppendUint32(info, max(4096, s.minBlock))
		b = append(b, optMessage(7, 3, binary.BigEndian.AppendUint32(info, s.maxPayload))...)
	}
	if s.description != "" {
		b = append(b, optMessage(7, 3, append([]byte{0, 2}, s.description...))...)
	}
	b = append(b, optMessage(7, 3, []byte{0x99, 0x99, 1, 2, 3})...)
	return append(b, optMessage(7, 1, nil)...)
}

// asks receives an option of the client, and before it, if flags is set, the client's flags.
func asks(c io.Reader, flags bool) (option uint32, data []byte, err error) {
	n := 16
	if flags {
		n += 4
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		return 0, nil, err
	}
	if flags {
		if f := binary.BigEndian.Uint32(b); f != 3 {
			return 0, nil, errors.New("client flags")
		}
		b = b[4:]
	}
	if string(b[:8]) != "IHAVEOPT" {
		return 0, nil, errors.New("no option")
	}
	data = make([]byte, binary.BigEndian.Uint32(b[12:]))
	_, err = io.ReadFull(c, data)
	return binary.BigEndian.Uint32(b[8:]), data, err
}

func (s *server) shake(c net.Conn) bool {
	_, _ = c.Write(greeting(3))
	option, data, err := asks(c, true)
	if err != nil || option != 7 || len(data) < 6 {
		return false
	}
	n := binary.BigEndian.Uint32(data)
	if string(data[4:4+n]) != "disk" {
		_, _ = c.Write(optMessage(7, 1<<31+6, []byte("no such export here\x1b[2J")))
		if option, _, err = asks(c, false); err == nil && option == 2 {
			s.mu.Lock()
			s.aborts++
			s.mu.Unlock()
		}
		return false
	}
	_, err = c.Write(s.exported())
	return err == nil
}

type asked struct {
	typ         uint16
	cookie, off uint64
	n           uint32
	data        []byte
}

func (s *server) ask(c net.Conn, to chan<- asked) bool {
	var b [28]byte
	if _, err := io.ReadFull(c, b[:]); err != nil || binary.BigEndian.Uint32(b[:]) != 0x25609513 {
		return false
	}
	q := asked{binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:]),
		binary.BigEndian.Uint32(b[24:]), nil}
	switch q.typ {
	case 1:
		q.data = make([]byte, q.n)
		if _, err := io.ReadFull(c, q.data); err != nil {
			return false
		}
	case 2:
		s.mu.Lock()
		s.discs++
		s.mu.Unlock()
		return false
	}
	to <- q
	return true
}

// gather waits for the requests to answer next; it returns none if the channel is closed.
func (s *server) gather(from <-chan asked) (list []asked) {
	take := func(wait bool) bool {
		if !wait && len(from) == 0 {
			return false
		}
		q, ok := <-from
		if ok {
			list = append(list, q)
		}
		return ok
	}
	if !take(true) || list[0].typ == 3 {
		return list
	}
	s.mu.Lock()
	left := &s.reads
	if list[0].typ == 1 {
		left = &s.writes
	}
	batch, most := s.batch, min(s.batch, *left)
	*left -= most
	s.mu.Unlock()
	for batch == 0 && len(list) < 64 && take(false) || batch > 0 && len(list) < most && take(true) {
	}
	return list
}

func (s *server) answer(a *answerTo, q asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := uint32(0)
	switch {
	case q.typ == 3:
		s.flushes++
		status = s.flushed
	case s.status != nil:
		status = s.status(a.n, a.write)
	}
	a.b = binary.BigEndian.AppendUint32(nil, 0x67446698)
	a.b = binary.BigEndian.AppendUint32(a.b, status)
	a.b = binary.BigEndian.AppendUint64(a.b, q.cookie)
	switch {
	case status != 0:
	case q.typ == 0:
		a.b = append(a.b, s.store[q.off:q.off+uint64(q.n)]...)
	case q.typ == 1:
		copy(s.store[q.off:], q.data)
	}
}

func (s *server) content() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.store)
}

func patient() time.Time { return time.Now().Add(testkit.Patience) }
