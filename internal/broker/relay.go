package broker

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/wire/gateway"
)

// maxSenders bounds the senders that a relay remembers. When a datagram of one more comes, the relay forgets the
// others, except for the senders of about the last maxSenders/2 datagrams.
const maxSenders = 4096

// relay carries datagrams between the confined process and a UDP socket of the broker for a forward of the
// gateway. The process may send only to senders that the relay remembers. A message is a datagram after the address of
// its sender or receiver. A message of the broker with an unspecified address has instead of a datagram the number of
// datagrams that the socket has lost so far, as 8 bytes, little-endian.
type relay struct {
	host    gateway.Datagrams
	process *net.UnixConn

	mu   sync.Mutex
	seen map[netip.AddrPort]uint64 // by sender: turn at its last datagram
	turn uint64
}

func (l *relay) note(from netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn++
	if _, known := l.seen[from]; !known && len(l.seen) == maxSenders {
		for a, last := range l.seen {
			if last+maxSenders/2 <= l.turn {
				delete(l.seen, a)
			}
		}
	}
	l.seen[from] = l.turn
}

func (l *relay) heard(a netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.seen[a]
	return known
}

func (l *relay) close() {
	_ = l.host.Close()
	_ = l.process.Close()
}

func (l *relay) answer() {
	defer l.close()
	b := make([]byte, addrLen+maxDatagram)
	for {
		n, err := l.process.Read(b)
		if err != nil || n < addrLen {
			return
		}
		if to := address(b[:addrLen]).addrPort(); l.heard(to) {
			_, _ = l.host.WriteToUDPAddrPort(b[addrLen:n], to)
		}
	}
}

func (l *relay) run() {
	go l.answer()
	b := make([]byte, addrLen+maxDatagram)
	var lost uint64
	for {
		n, from, err := l.host.ReadFromUDPAddrPort(b[addrLen:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as an ICMP error in reply to a datagram that answer sent
			time.Sleep(time.Millisecond)
			continue
		}
		l.note(from)
		sender := toAddress(from)
		copy(b, sender[:])
		_, err = l.process.Write(b[:addrLen+n])
		if now := l.host.Lost(); err == nil && now != lost {
			lost = now
			_, err = l.process.Write(le.AppendUint64(make([]byte, addrLen), lost))
		}
		if err != nil {
			l.close()
			return
		}
	}
}

type relayed struct {
	c      *net.UnixConn
	listen netip.AddrPort
	lost   atomic.Uint64
}

const maxDatagram = 64 << 10

func (r *relayed) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	m := make([]byte, addrLen+maxDatagram)
	for {
		n, err := r.c.Read(m)
		if err != nil {
			return 0, netip.AddrPort{}, err
		}
		if n < addrLen { // 0 when the broker's end is closed
			return 0, netip.AddrPort{}, net.ErrClosed
		}
		from := address(m[:addrLen]).addrPort()
		if !from.Addr().IsUnspecified() { // else a count of lost datagrams
			return copy(b, m[addrLen:n]), from, nil
		}
		if n == addrLen+8 {
			r.lost.Store(le.Uint64(m[addrLen:]))
		}
	}
}

// Lost implements gateway.Datagrams.
func (r *relayed) Lost() uint64 { return r.lost.Load() }

func (r *relayed) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	receiver := toAddress(to)
	if _, err := r.c.Write(slices.Concat(receiver[:], b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (r *relayed) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(r.listen) }
func (r *relayed) Close() error        { return r.c.Close() }
