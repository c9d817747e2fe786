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

// maxSenders is how many senders a relay remembers at most. When one more comes, the relay forgets all but the senders
// of the last maxSenders/2 datagrams.
const maxSenders = 4096

// relay carries datagrams between the confined process and a UDP socket that the broker has opened on the host for a
// forward of the gateway. The process may send only to addresses whose datagrams the relay remembers. Each message
// between the broker and the process is an address and a datagram. A message of the broker whose address is zero has,
// in place of a datagram, the number of datagrams for which the host's socket had no room.
type relay struct {
	host    gateway.Datagrams
	process *net.UnixConn

	mu   sync.Mutex
	seen map[netip.AddrPort]uint64 // number of each sender's last datagram
	turn uint64                    // number of datagrams so far
}

// note remembers the sender of a datagram.
func (l *relay) note(from netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn++
	if _, known := l.seen[from]; !known && len(l.seen) == maxSenders {
		for a, last := range l.seen { // so that there is room for at least 2,048 more
			if last+maxSenders/2 <= l.turn {
				delete(l.seen, a)
			}
		}
	}
	l.seen[from] = l.turn
}

// heard reports whether an address is a sender that the relay remembers.
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

// answer passes datagrams of the process to their receivers, if the relay remembers a datagram from
// each of them.
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

// run starts answer, and passes datagrams of the host's socket to the process, until one of the two sockets is closed.
func (l *relay) run() {
	go l.answer()
	b := make([]byte, addrLen+maxDatagram)
	var lost uint64
	for {
		n, from, err := l.host.ReadFromUDPAddrPort(b[addrLen:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // an ICMP error in reply to an answer
			time.Sleep(time.Millisecond)
			continue
		}
		l.note(from)
		sender := toAddress(from)
		copy(b, sender[:])
		_, err = l.process.Write(b[:addrLen+n])
		if now := l.host.Lost(); err == nil && now != lost { // the socket has lost more datagrams
			lost = now
			_, err = l.process.Write(le.AppendUint64(make([]byte, addrLen), lost))
		}
		if err != nil {
			l.close()
			return
		}
	}
}

// relayed is the process's end of a relay, a gateway.Datagrams.
type relayed struct {
	c      *net.UnixConn
	listen netip.AddrPort // address of the host's socket
	lost   atomic.Uint64
}

// maxDatagram bounds the length of a UDP datagram.
const maxDatagram = 64 << 10

func (r *relayed) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	m := make([]byte, addrLen+maxDatagram)
	for {
		n, err := r.c.Read(m)
		if err != nil {
			return 0, netip.AddrPort{}, err
		}
		if n < addrLen { // the broker has hung up
			return 0, netip.AddrPort{}, net.ErrClosed
		}
		from := address(m[:addrLen]).addrPort()
		if !from.Addr().IsUnspecified() { // the zero address marks a count of lost datagrams
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
