package serve

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/access"
	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/scm"
)

// port is a NIC that serves one QEMU after the other.
type port struct {
	*lab.Port
	src     source
	note    func(port, format string, args ...any)
	outside *broker.Client // the broker; nil: none
	turn    chan struct{}  // has an element while a QEMU is served
	peer    atomic.Int64   // the process id of the QEMU that is or was served last

	silence, takeover time.Duration

	// The process that hung up last without accepting the offered features, and how often it did so in a row.
	// Guarded by turn.
	declining, times int

	mu      sync.Mutex
	refused access.Told // under mu: refused processes
}

func (p *port) serve(ctx context.Context, conn *net.UnixConn) {
	if !p.speaks(ctx, conn) {
		_ = conn.Close()
		return
	}
	pid := peer(conn)
	select {
	case p.turn <- struct{}{}:
	case <-time.After(p.takeover):
		p.refuse(pid)
		_ = conn.Close()
		return
	case <-ctx.Done():
		_ = conn.Close()
		return
	}
	defer func() { <-p.turn }()
	p.begins(pid)
	var once sync.Once
	connected := func() { once.Do(func() { p.connected(pid) }) }
	if p.declining == pid && p.times > 0 { // the process likely hangs up at once: it is noted later, if it stays
		defer time.AfterFunc(p.takeover, connected).Stop()
	} else {
		connected()
	}
	err := p.Serve(ctx, conn)
	if err == nil && ctx.Err() == nil && p.declined(pid) {
		return
	}
	connected()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.note(p.Name, "process %d: connection ended: %v", pid, err)
	default:
		p.note(p.Name, "process %d hung up", pid)
	}
}

// refuse notes that a process is refused: once for each of the first processes (access.Told) that are refused until the
// port serves the next connection.
func (p *port) refuse(pid int) {
	p.mu.Lock()
	first := p.refused.First(uint32(pid))
	p.mu.Unlock()
	if first {
		p.note(p.Name, "process %d is refused: process %d has this NIC; a second QEMU needs a port of its own (--ports)", pid,
			p.peer.Load())
	}
}

func (p *port) begins(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = access.Told{}
	p.peer.Store(int64(pid))
}

// connected notes that a process has connected, and warns of a QEMU with an earlier vnic's GPU memory.
func (p *port) connected(pid int) {
	p.note(p.Name, "process %d connected", pid)
	if g := p.GPU(); g != nil && p.outside.OldMemory(pid, g.File, lab.GPUFilePrefix) {
		p.note(p.Name,
			"warning: process %d has the GPU memory of an earlier vnic, not that of this one, and nothing tells its guest: "+
				"payload "+
				"that goes to GPU memory is lost to it; ordinary sockets go on. End that QEMU, and start it anew with the "+
				"flags above", pid)
	}
}

// declined reports whether a process has hung up without accepting the features more than once in a row. The
// second time it makes a note.
func (p *port) declined(pid int) bool {
	offer := p.Unaccepted()
	switch {
	case offer == "":
		p.declining, p.times = 0, 0
		return false
	case pid != p.declining:
		p.declining, p.times = pid, 0
	}
	p.times++
	if p.times == 2 {
		p.note(p.Name, "process %d hangs up behind GET_FEATURES again and again: it wants what this vnic does not offer, as "+
			"more queues; its QEMU says what. Offered are %s. Start vnic with the flags that it had (--queues, --xdp, "+
			"--max-mtu), or that QEMU anew with the flags above", pid, offer)
	}
	return p.times > 1
}

// speaks waits until the peer has sent a byte, which it leaves unread; false: it hung up, or was silent for
// p.silence, or ctx ended.
func (p *port) speaks(ctx context.Context, conn *net.UnixConn) (some bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	giveUp := func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) } // a time in the past: reads fail
	stop, limit := context.AfterFunc(ctx, giveUp), time.AfterFunc(p.silence, giveUp)
	_ = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		some = n > 0
		return err != unix.EAGAIN && err != unix.EINTR
	})
	inTime, on := limit.Stop(), stop() // false: giveUp has run, or will run
	return some && inTime && on
}

func peer(conn *net.UnixConn) int {
	if c, err := scm.Peer(conn); err == nil {
		return int(c.Pid)
	}
	return 0
}
