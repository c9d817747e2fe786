package rxepeer

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Families of addresses.
const (
	IPv4 = 4
	IPv6 = 6
)

// Addr returns the first address of a family from the GIDs of the RDMA device, without IPv6 link-local ones. If there
// is none, it waits up to five seconds for one.
func (p *Peer) Addr(family int) (netip.Addr, error) {
	a, err := p.ask(0, "gid", 1, "gid", family)
	if err != nil {
		return netip.Addr{}, err
	}
	addr := a.gid(0)
	return addr, a.err
}

// End describes one end of a connection.
type End struct {
	QPN, PSN uint32     // 24 bits each; PSN is the number of the first packet that this end sends
	Addr     netip.Addr // its GID
}

// QP makes queue pair q, which is reliable (RC), with a completion queue of its own and room for 256 send requests and
// 256 receive requests. It first destroys an old q. The low 24 bits of psn are the number of the first packet that q
// sends.
func (p *Peer) QP(q, family int, psn uint32) (End, error) {
	a, err := p.ask(0, "qp", 3, "qp", q, family, psn)
	if err != nil {
		return End{}, err
	}
	e := End{QPN: uint32(a.uint(0, 24)), PSN: uint32(a.uint(1, 24)), Addr: a.gid(2)}
	return e, a.err
}

// Path has the parameters of a connection; the zero Path is usable.
type Path struct {
	MTU      int   // payload of a packet, in bytes: 256, 512, 1024, 2048 or 4096; 0: Peer.PortMTU
	Timeout  uint8 // wait for an acknowledgement, 4.096 us << Timeout; 0: 14, 67 ms
	Retry    int   // how often a packet is sent again, 1 to 7; 0: 7; NoRetry: never
	RNRRetry int   // how often a packet is sent again after RNR, 1 to 6; 7 and 0: for ever; NoRetry: never
	RNRTimer uint8 // code of the time that this end asks senders to wait (IBTA 9.7.5.2.8); 0: 12, 640 us
}

// NoRetry as Retry or RNRRetry of a Path means no retries.
const NoRetry = -1

func (o *Path) complete(mtu int) {
	set := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
		*n = max(*n, 0)
	}
	set(&o.MTU, mtu)
	set(&o.Retry, 7)
	set(&o.RNRRetry, 7)
	if o.Timeout == 0 {
		o.Timeout = 14
	}
	if o.RNRTimer == 0 {
		o.RNRTimer = 12
	}
}

// Connect connects queue pair q, which QP has just made, with another end. The other end must answer ARP or neighbour
// discovery.
func (p *Peer) Connect(q int, to End, o Path) error {
	o.complete(p.PortMTU)
	return p.do("connect", q, to.QPN, to.PSN, gid(to.Addr), o.MTU, o.Timeout, o.Retry, o.RNRRetry, o.RNRTimer)
}

// State is the state of a queue pair.
type State struct {
	Name         string // RESET, INIT, RTR, RTS, SQD, SQE or ERROR; ?: another one
	RQPSN, SQPSN uint32
}

// State returns the state of a queue pair.
func (p *Peer) State(q int) (State, error) {
	a, err := p.ask(0, "state", 3, "state", q)
	if err != nil {
		return State{}, err
	}
	s := State{Name: a.words[0], RQPSN: uint32(a.uint(1, 32)), SQPSN: uint32(a.uint(2, 32))}
	return s, a.err
}

// Fail brings a queue pair to the state ERROR.
func (p *Peer) Fail(q int) error { return p.do("fail", q) }

// Drop destroys queue pair q, if there is one.
func (p *Peer) Drop(q int) error { return p.do("drop", q) }

// Access is letters: l local writes, w remote writes, r remote reads, a remote atomics.
type Access string

// All is every access but atomics.
const All Access = "lwr"

// MR is a memory region.
type MR struct {
	LKey, RKey uint32
	VA         uint64
}

// MR makes memory region m of size bytes, one to 4 GiB, with zeros in it. It replaces an old m.
func (p *Peer) MR(m int, size uint64, access Access) (MR, error) {
	if access == "" {
		access = "-"
	}
	a, err := p.ask(0, "mr", 3, "mr", m, size, access)
	if err != nil {
		return MR{}, err
	}
	r := MR{LKey: uint32(a.uint(0, 32)), RKey: uint32(a.uint(1, 32)), VA: a.uint(2, 64)}
	return r, a.err
}

// Dereg deregisters memory region m, whose memory stays until MR replaces m.
func (p *Peer) Dereg(m int) error { return p.do("dereg", m) }

// Fill writes n bytes of seed's pattern (gpumem.FillAt) to region m at offset off; the parameter from is the offset in
// the pattern.
func (p *Peer) Fill(m int, off, n, seed, from uint64) error {
	return p.do("fill", m, off, n, seed, from)
}

// Poison writes b to n bytes of region m at offset off.
func (p *Peer) Poison(m int, off, n uint64, b byte) error { return p.do("poison", m, off, n, b) }

// Flip changes bit 0 of the byte at offset off of region m.
func (p *Peer) Flip(m int, off uint64) error { return p.do("flip", m, off) }

// Wrong has the number and the place of wrong bytes.
type Wrong struct {
	Bytes uint64
	First int64 // index of the first wrong byte, counted from off; -1: none
}

// Check compares n bytes of region m at offset off with the bytes that Fill would write.
func (p *Peer) Check(m int, off, n, seed, from uint64) (Wrong, error) {
	return p.wrong("check", m, off, n, seed, from)
}

// Same compares each of n bytes of region m at offset off with b.
func (p *Peer) Same(m int, off, n uint64, b byte) (Wrong, error) {
	return p.wrong("same", m, off, n, b)
}

func (p *Peer) wrong(request ...any) (Wrong, error) {
	a, err := p.ask(0, "check", 2, request...)
	if err != nil {
		return Wrong{}, err
	}
	w := Wrong{Bytes: a.uint(0, 64), First: a.int(1)}
	return w, a.err
}

// Sum returns the CRC-32 (IEEE) of n bytes of region m at offset off.
func (p *Peer) Sum(m int, off, n uint64) (uint32, error) {
	a, err := p.ask(0, "sum", 1, "sum", m, off, n)
	if err != nil {
		return 0, err
	}
	crc := uint32(a.uint(0, 32))
	return crc, a.err
}

// Recv posts a receive request for n bytes of region m at offset off; with n 0 it has no memory.
func (p *Peer) Recv(q int, id uint64, m int, off, n uint64) error {
	return p.do("recv", q, id, m, off, n)
}

// Op is the operation of a request of a send queue.
type Op string

// Operations.
const (
	Write    Op = "write"
	WriteImm Op = "write_imm"
	Read     Op = "read"
	Send     Op = "send"
	SendImm  Op = "send_imm"
)

// Immediate reports whether the other end gets an immediate value.
func (o Op) Immediate() bool { return o == WriteImm || o == SendImm }

// Receives reports whether the other end needs a receive request.
func (o Op) Receives() bool { return o == WriteImm || o == Send || o == SendImm }

// Request is a request of a send queue.
type Request struct {
	ID       uint64
	Op       Op
	M        int    // number of this end's memory region
	Off, Len uint64 // part of that region
	VA       uint64 // address of the other end's memory; sends use neither VA nor RKey
	RKey     uint32 // key of the other end's region
	Imm      uint32 // immediate value, if Op.Immediate
}

// Post posts a request, whose completion Poll returns.
func (p *Peer) Post(q int, r Request) error {
	return p.do("post", q, r.ID, r.Op, r.M, r.Off, r.Len, r.VA, r.RKey, r.Imm)
}

// Status is the status of a completion (enum ibv_wc_status).
type Status int

// Some statuses.
const (
	Success            Status = 0
	LocalLength        Status = 1
	LocalProtection    Status = 4
	Flushed            Status = 5
	RemoteInvalid      Status = 9
	RemoteAccess       Status = 10
	RemoteOperation    Status = 11
	RetriesExceeded    Status = 12
	RNRRetriesExceeded Status = 13
)

// Opcodes of completions of receive requests (enum ibv_wc_opcode).
const (
	opcodeRecv          = 128
	opcodeRecvImmediate = 129 // a write with immediate
)

// Completion is an entry of a completion queue.
type Completion struct {
	ID     uint64
	Status Status
	Text   string
	// In a completion whose Status is not Success the following fields are zero.
	Recv   bool   // the completion is of a receive request
	Len    uint32 // bytes received, if Recv is set; else without meaning
	HasImm bool
	Imm    uint32
}

// Poll returns the next completion of queue pair q. It waits for one as long as its parameter wait says, in whole
// milliseconds and at most a minute; ok is false if none came or Poll returns an error.
func (p *Peer) Poll(q int, wait time.Duration) (c Completion, ok bool, err error) {
	a, err := p.ask(wait, completion, 6, "poll", q, wait.Milliseconds())
	if err != nil || len(a.words) == 0 {
		return c, false, err
	}
	opcode, imm := a.int(2), a.int(4)
	c = Completion{ID: a.uint(0, 64), Status: Status(a.int(1)), Text: strings.Join(a.words[5:], " "),
		Recv: opcode == opcodeRecv || opcode == opcodeRecvImmediate, Len: uint32(a.uint(3, 32)), HasImm: imm >= 0}
	if c.HasImm {
		c.Imm = uint32(imm)
	}
	return c, a.err == nil, a.err
}

// Event is an asynchronous event of the device (enum ibv_event_type).
type Event struct {
	Type int
	QPN  int64 // number of the queue pair; -1: the event is of none
	Text string
}

// Async returns the device's next event. It waits as Poll does, and ok is false in the same cases.
func (p *Peer) Async(wait time.Duration) (e Event, ok bool, err error) {
	a, err := p.ask(wait, event, 3, "async", wait.Milliseconds())
	if err != nil || len(a.words) == 0 {
		return e, false, err
	}
	e = Event{Type: int(a.int(0)), QPN: a.int(1), Text: strings.Join(a.words[2:], " ")}
	return e, a.err == nil, a.err
}

// Counters returns the counters of the device's port (drivers/infiniband/sw/rxe/rxe_hw_counters.c), by name.
func (p *Peer) Counters() (map[string]uint64, error) {
	a, err := p.ask(0, "counters", 1, "counters")
	if err != nil {
		return nil, err
	}
	m := map[string]uint64{}
	for _, w := range a.words {
		name, value, _ := strings.Cut(w, "=")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			m[name] = n
		}
	}
	return m, nil
}
