package serve

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/lab"
)

// port is a NIC that one QEMU after the other has.
type port struct {
	*lab.Port
	src     source
	note    func(port, format string, args ...any)
	outside *broker.Client // nil: none
	turn    chan struct{}  // holds one while a QEMU is served
	peer    atomic.Int64   // its process

	silence, takeover time.Duration
}

// serve serves one connection, which it owns.
func (p *port) serve(ctx context.Context, conn *net.UnixConn) {
	if !p.speaks(ctx, conn) {
		_ = conn.Close()
		return
	}
	pid := peer(conn)
	late := time.NewTimer(p.takeover)
	defer late.Stop()
	select {
	case p.turn <- struct{}{}:
	case <-late.C:
		p.note(p.Name, "process %d is refused: process %d has this NIC; a second QEMU needs a port of its own (--ports)", pid,
			p.peer.Load())
		_ = conn.Close()
		return
	case <-ctx.Done():
		_ = conn.Close()
		return
	}
	defer func() { <-p.turn }()
	p.peer.Store(int64(pid))
	p.note(p.Name, "process %d connected", pid)
	if g := p.GPU(); g != nil && p.hasOldGPU(pid, g.File) {
		p.note(p.Name,
			"warning: process %d has the GPU memory of an earlier vnic, not that of this one, and nothing tells its guest: "+
				"payload "+
				"that goes to GPU memory is lost to it; ordinary sockets go on. End that QEMU, and start it anew with the "+
				"flags above", pid)
	}
	switch err := p.Serve(ctx, conn); {
	case ctx.Err() != nil:
	case err != nil:
		p.note(p.Name, "process %d: connection ended: %v", pid, err)
	default:
		p.note(p.Name, "process %d hung up", pid)
	}
}

// speaks waits until the peer has said something, and reads none of it. false: it hung up, or said
// nothing for too long, or ctx ended.
func (p *port) speaks(ctx context.Context, conn *net.UnixConn) (some bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	giveUp := func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) } // long past
	stop, limit := context.AfterFunc(ctx, giveUp), time.AfterFunc(p.silence, giveUp)
	_ = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		some = n > 0
		return err != unix.EAGAIN && err != unix.EINTR
	})
	inTime, on := limit.Stop(), stop() // or the deadline is set, or about to be
	return some && inTime && on
}

// peer is the process at the other end; 0 if that cannot be told.
func peer(conn *net.UnixConn) int {
	if c, err := scm.Peer(conn); err == nil {
		return int(c.Pid)
	}
	return 0
}
