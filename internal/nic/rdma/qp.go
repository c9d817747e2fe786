package rdma

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/splitter"
)

// qp is a queue pair. A goroutine holds qp.mu while it makes or carries out a packet of the queue pair. It does not
// lock Engine.mu then; a command may lock qp.mu while it holds Engine.mu.
type qp struct {
	e    *Engine
	n    uint32
	pd   uint32
	send *cq
	recv *cq

	queued atomic.Bool  // the queue pair is in Engine.run, or is being added to it
	due    atomic.Int64 // when tick must schedule the queue pair (Engine.now); 0: tick does not. Written under mu

	mu    sync.Mutex // guards the fields below
	dead  bool
	state control.QPState
	cause control.WCStatus
	path  control.QPPath
	mtu   uint32
	frame []byte        // Ethernet, IP and UDP headers of its packets, without lengths and IPv4 checksum
	from  splitter.Flow // addresses of the peer's packets; its ports are not used

	req       requester
	resp      responder
	recvs     []recvWQE
	firstRecv int
	nRecv     int

	lastOwn bool // emit made a request while an answer to a READ was due, and has made no answer since

	out, in control.RDMACounts

	head   scratch // for the ICRC of received packets
	crc    crcOf
	landed struct { // where the payload of the packet in Receive went
		gpu     int // 1 + the GPU of its first byte; 0: none
		bounced bool
	}
	src    []dma.Segment // scratch: a part of a received packet, usually its payload
	dst    []dma.Segment // scratch: memory for the payload
	bounce *dma.Region   // host memory for payload on its way to a GPU; made when first needed
}

type recvWQE struct {
	id   uint64
	sges [control.MaxSGEs]control.SGE
	n    int
	size uint64
}

// AddQP implements control.RDMA.
func (e *Engine) AddQP(o control.QP) (uint32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	send, recv := e.cqs[o.SendCQ], e.cqs[o.RecvCQ]
	places := int(o.MaxSend) + int(o.MaxRecv)
	switch {
	case !e.pds[o.PD]:
		return 0, fmt.Errorf("queue pair: no protection domain %d: %w", o.PD, syscall.ENOENT)
	case send == nil || recv == nil:
		return 0, fmt.Errorf("queue pair: no completion queue %d or %d: %w", o.SendCQ, o.RecvCQ, syscall.ENOENT)
	case o.MaxSend == 0 || o.MaxSend > MaxWRs || o.MaxRecv > MaxWRs:
		return 0, fmt.Errorf("queue pair: %d sends, not 1 to %d, or %d receives, not 0 to that: %w", o.MaxSend, MaxWRs,
			o.MaxRecv, syscall.EINVAL)
	case e.qps.count == MaxQPs || places > MaxPlaces-e.taken:
		return 0, fmt.Errorf("queue pair: there are %d, of at most %d, and %d places are taken of %d: %w", e.qps.count,
			MaxQPs, e.taken, MaxPlaces, syscall.ENOSPC)
	}
	q := &qp{e: e, pd: o.PD, send: send, recv: recv, state: control.QPInit}
	q.crc.init()
	q.req.wqes = make([]wqe, o.MaxSend)
	q.recvs = make([]recvWQE, o.MaxRecv)
	q.n = e.qps.free(qpnBits)
	send.users++
	recv.users++
	e.taken += places
	e.qps.set(q.n, q)
	e.active.Add(1)
	return q.n, nil
}

func (e *Engine) qpOf(n uint32) *qp {
	if q := e.qps.place(n).Load(); q != nil && q.n == n {
		return q
	}
	return nil
}

func (e *Engine) with(n uint32, f func(q *qp) error) error {
	token := e.users.Enter()
	defer e.users.Leave(token)
	q := e.qpOf(n)
	if q == nil {
		return fmt.Errorf("no queue pair %d: %w", n, syscall.ENOENT)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead { // slots of completion queues that f reserved now would never be freed
		return fmt.Errorf("no queue pair %d: %w", n, syscall.ENOENT)
	}
	return f(q)
}

// DelQP implements control.RDMA.
func (e *Engine) DelQP(n uint32) error {
	e.mu.Lock()
	q := e.qpOf(n)
	if q == nil {
		e.mu.Unlock()
		return fmt.Errorf("no queue pair %d: %w", n, syscall.ENOENT)
	}
	e.endQP(q)
	e.mu.Unlock()
	e.users.Wait()
	return nil
}

// endQP deletes a queue pair. The caller holds the engine's mu.
func (e *Engine) endQP(q *qp) {
	e.qps.del(q.n)
	e.active.Add(-1)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dead = true
	q.due.Store(0)
	q.send.release(q.req.n)
	q.recv.release(q.nRecv)
	q.dropParked()
	q.send.users--
	q.recv.users--
	e.taken -= len(q.req.wqes) + len(q.recvs)
	e.ended.out.Add(&q.out)
	e.ended.in.Add(&q.in)
}

// ConnectQP implements control.RDMA.
func (e *Engine) ConnectQP(p control.QPPath) error {
	most := e.maxMTU()
	return e.with(p.QPN, func(q *qp) error {
		mtu := p.MTU
		switch {
		case q.state != control.QPInit:
			return fmt.Errorf("queue pair %d: it is connected, or was: %w", q.n, syscall.EISCONN)
		case mtu < 256 || mtu > 4096 || mtu&(mtu-1) != 0:
			return fmt.Errorf("queue pair %d: path MTU %d: not 256, 512, 1024, 2048 or 4096: %w", q.n, mtu, syscall.EINVAL)
		case mtu > most:
			return fmt.Errorf("queue pair %d: path MTU %d: the NIC's MTU of %d has room for %d: %w", q.n, mtu, e.c.MTU(), most,
				syscall.EINVAL)
		case (p.RemoteQPN|p.SendPSN|p.RecvPSN)&^psnMask != 0:
			return fmt.Errorf("queue pair %d: a number of more than 24 bits: %w", q.n, syscall.EINVAL)
		case p.Local.Is4() != p.Remote.Is4() || p.Remote.IsMulticast() || p.Remote.IsUnspecified() || p.Local.IsUnspecified():
			return fmt.Errorf("queue pair %d: from %v to %v: not two addresses of one family: %w", q.n, p.Local, p.Remote,
				syscall.EINVAL)
		case p.MAC == [6]byte{} || p.MAC[0]&1 != 0:
			return fmt.Errorf("queue pair %d: the peer's MAC is not a unicast address: %w", q.n, syscall.EINVAL)
		case p.Timeout < 1 || p.Timeout > 31 || p.Retries > 7 || p.RNR > 7 || p.RNRTimer > 31:
			return fmt.Errorf("queue pair %d: timeout %d (1 to 31), retries %d, RNR retries %d (0 to 7), RNR timer %d "+
				"(0 to 31): %w", q.n, p.Timeout, p.Retries, p.RNR, p.RNRTimer, syscall.EINVAL)
		case p.Reads > MaxReads || p.ReadDepth > MaxReads:
			return fmt.Errorf("queue pair %d: %d and %d READs at one time, at most %d: %w", q.n, p.Reads, p.ReadDepth, MaxReads,
				syscall.EINVAL)
		case p.DSCP > 63:
			return fmt.Errorf("queue pair %d: DSCP %d: not 0 to 63: %w", q.n, p.DSCP, syscall.EINVAL)
		}
		q.connect(p)
		return nil
	})
}

func (q *qp) connect(p control.QPPath) {
	q.path, q.mtu, q.state = p, uint32(p.MTU), control.QPReady
	q.makeFrame()
	q.from = splitter.Flow{Proto: splitter.ProtoUDP, IPv6: !p.Remote.Is4()}
	copy(q.from.Src[:], p.Remote.AsSlice())
	copy(q.from.Dst[:], p.Local.AsSlice())
	r := &q.req
	r.next, r.una, r.top = p.SendPSN, p.SendPSN, p.SendPSN
	r.retries, r.rnrs = p.Retries, p.RNR
	q.resp.psn = p.RecvPSN
	q.resp.answers = make([]answer, 4*int(p.ReadDepth)+4) // for ReadDepth READs, as many repeated ones, and ACKs
}

// makeFrame makes q.frame, the common headers of the packets that the queue pair sends.
func (q *qp) makeFrame() {
	p := &q.path
	var b []byte
	b = append(b, p.MAC[:]...)
	b = append(b, q.e.c.MAC[:]...)
	if p.Remote.Is4() {
		b = binary.BigEndian.AppendUint16(b, splitter.EtherTypeIPv4)
		b = append(b, 0x45, p.DSCP<<2, 0, 0, 0, 0, 0x40, 0, 64, splitter.ProtoUDP, 0, 0) // do not fragment
	} else {
		b = binary.BigEndian.AppendUint16(b, splitter.EtherTypeIPv6)
		b = append(b, 0x60|p.DSCP>>2, p.DSCP<<6, 0, 0, 0, 0, splitter.ProtoUDP, 64)
	}
	b = append(b, p.Local.AsSlice()...)
	b = append(b, p.Remote.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, 0xc000|uint16(q.n*40503>>2)) // source port, for ECMP (A17.3.2.1)
	b = binary.BigEndian.AppendUint16(b, Port)
	b = append(b, 0, 0, 0, 0)
	q.frame = b
}

// QPStatus implements control.RDMA.
func (e *Engine) QPStatus(n uint32) (s control.QPStatus, err error) {
	err = e.with(n, func(q *qp) error {
		r := &q.req
		s = control.QPStatus{QPN: n, State: q.state, Cause: q.cause, Reads: uint16(r.reads), Sends: uint32(r.n),
			Recvs: uint32(q.nRecv), SendPSN: r.top, Unacked: r.una, RecvPSN: q.resp.psn, Out: q.out, In: q.in}
		return nil
	})
	return s, err
}

// PostRecv implements control.RDMA.
func (e *Engine) PostRecv(p control.Post) error {
	return e.with(p.QPN, func(q *qp) error {
		for i := range p.WRs {
			if r := &p.WRs[i]; r.Op != control.WRRecv || r.Flags != 0 || r.Imm != 0 || r.Key != 0 || r.Remote != 0 {
				return fmt.Errorf("queue pair %d: work request %d of %d: to receive it has an operation (%d) and memory, and no "+
					"more: %w", q.n, i+1, len(p.WRs), control.WRRecv, syscall.EINVAL)
			}
		}
		if len(p.WRs) > len(q.recvs)-q.nRecv {
			return fmt.Errorf("queue pair %d: %d receives, %d posted of %d: %w", q.n, len(p.WRs), q.nRecv, len(q.recvs),
				syscall.ENOSPC)
		}
		if !q.recv.reserve(len(p.WRs)) {
			return fmt.Errorf("queue pair %d: completion queue %d has no place for %d more: poll it: %w", q.n, q.recv.id,
				len(p.WRs), syscall.ENOSPC)
		}
		for i := range p.WRs {
			r := &p.WRs[i]
			w := &q.recvs[(q.firstRecv+q.nRecv)%len(q.recvs)]
			*w = recvWQE{id: r.ID}
			w.n = copy(w.sges[:], r.SGEs)
			for _, s := range r.SGEs {
				w.size += uint64(s.Len)
			}
			q.nRecv++
		}
		if q.state == control.QPError {
			q.flushRecvs()
		}
		return nil
	})
}

func (q *qp) takeRecv(w control.WC) {
	r := &q.recvs[q.firstRecv]
	w.ID, w.QPN, w.Op = r.id, q.n, control.WRRecv
	q.firstRecv, q.nRecv = (q.firstRecv+1)%len(q.recvs), q.nRecv-1
	q.complete(q.recv, w)
}

func (q *qp) complete(c *cq, w control.WC) {
	if c.put(w) {
		q.e.tell(c.id)
	}
}

func (q *qp) flushRecvs() {
	for q.nRecv > 0 {
		q.takeRecv(control.WC{Status: control.WCFlushed})
	}
}

// fail puts the queue pair into the error state, flushes its work requests, and drops its answers to READs. In the
// error state it does nothing.
func (q *qp) fail(cause control.WCStatus) {
	if q.state == control.QPError {
		return
	}
	q.resp.dropReads()
	q.stop(cause)
}

// stop is fail, but keeps the answers to READs, which are still sent.
func (q *qp) stop(cause control.WCStatus) {
	if q.state == control.QPError {
		return
	}
	q.state, q.cause = control.QPError, cause
	q.due.Store(0)
	q.dropParked()
	q.flushSends()
	q.flushRecvs()
}

// rnrTimes are the delays of the timer codes of an RNR NAK (table 46).
var rnrTimes = [32]time.Duration{655360 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond,
	30 * time.Microsecond, 40 * time.Microsecond, 60 * time.Microsecond, 80 * time.Microsecond, 120 * time.Microsecond,
	160 * time.Microsecond, 240 * time.Microsecond, 320 * time.Microsecond, 480 * time.Microsecond, 640 * time.Microsecond,
	960 * time.Microsecond,
	1280 * time.Microsecond, 1920 * time.Microsecond, 2560 * time.Microsecond, 3840 * time.Microsecond,
	5120 * time.Microsecond, 7680 * time.Microsecond, 10240 * time.Microsecond, 15360 * time.Microsecond,
	20480 * time.Microsecond, 30720 * time.Microsecond, 40960 * time.Microsecond, 61440 * time.Microsecond,
	81920 * time.Microsecond, 122880 * time.Microsecond, 163840 * time.Microsecond, 245760 * time.Microsecond,
	327680 * time.Microsecond, 491520 * time.Microsecond}

// tally adds the bytes in segs to the counters in c of their kinds of memory. If paged is set, as for a region on
// demand, GPU memory that is not registered counts in DeviceBytes too.
func tally(c *control.RDMACounts, segs []dma.Segment, paged bool) {
	for _, s := range segs {
		for s.Len > 0 {
			kind, n := s.MemKind()
			if n == 0 {
				n = s.Len
			}
			switch {
			case kind == dma.GPU || kind == dma.GPUFile && paged:
				c.DeviceBytes += uint64(n)
			case kind == dma.GPUFile:
				c.GPUFileBytes += uint64(n)
			default:
				c.HostBytes += uint64(n)
			}
			s.Off, s.Len = s.Off+uint64(n), s.Len-n
		}
	}
}
