package broker

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"vnic.dev/vnic/internal/wire/gateway"
)

// maxSenders is how many senders a forward knows at a time. When one more comes, the older half is forgotten.
const maxSenders = 4096

// relay carries datagrams between a socket of the host and a process, which may answer who has sent something, and
// nobody else. Each message of theirs has an address before the datagram; one without an address tells the process how
// many datagrams the host's socket has had no room for.
type relay struct {
	host    gateway.Datagrams
	process *net.UnixConn

	mu   sync.Mutex
	seen map[netip.AddrPort]uint64 // by the turn in which it has sent something last
	turn uint64
}

// note notes that somebody has sent something.
func (l *relay) note(from netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn++
	if _, known := l.seen[from]; !known && len(l.seen) == maxSenders {
		for a, at := range l.seen { // the older half, so that the next 2,048 new senders find room
			if at+maxSenders/2 <= l.turn {
				delete(l.seen, a)
			}
		}
	}
	l.seen[from] = l.turn
}

// knows says whether somebody has sent something.
func (l *relay) knows(a netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.seen[a]
	return known
}

func (l *relay) close() {
	_ = l.host.Close()
	_ = l.process.Close()
}

// answer brings the process's answers to their senders.
func (l *relay) answer() {
	defer l.close()
	b := make([]byte, addrLen+maxDatagram)
	for {
		n, err := l.process.Read(b)
		if err != nil || n < addrLen {
			return
		}
		if to := readAddr(b); l.knows(to) {
			_, _ = l.host.WriteToUDPAddrPort(b[addrLen:n], to)
		}
	}
}

// run brings the process what comes, until one of the two is closed.
func (l *relay) run() {
	go l.answer()
	b := make([]byte, addrLen+maxDatagram)
	var lost uint64
	for {
		n, from, err := l.host.ReadFromUDPAddrPort(b[addrLen:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // an ICMP error of an answer
			time.Sleep(time.Millisecond)
			continue
		}
		l.note(from)
		copy(b, appendAddr(nil, from))
		_, err = l.process.Write(b[:addrLen+n])
		if now := l.host.Lost(); err == nil && now != lost { // what was lost came before this
			lost = now
			_, err = l.process.Write(le.AppendUint64(appendAddr(nil, netip.AddrPort{}), lost))
		}
		if err != nil {
			l.close()
			return
		}
	}
}
