package rdma

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fabric connects fake NICs. Its lock also guards fields of the NICs.
type fabric struct {
	mu   sync.Mutex
	nics map[netip.Addr]*fakeNIC
}

// fakeNIC is the NIC's end of the control channel, and moves bytes directly. The fabric's mu protects the
// fields from last on.
type fakeNIC struct {
	control.Handler // nil: only commands that fakeNIC implements come
	t               testing.TB
	f               *fabric
	limits          control.RDMALimits
	gen             atomic.Uint32
	d               *control.Dispatcher
	client          *control.Client
	inFlight        sync.WaitGroup

	last       uint32
	buffers    map[uint32][]byte
	guest      []byte
	pds        map[uint32]bool
	mrs        map[uint32]*fakeMR
	cqs        map[uint32]*fakeCQ
	qps        map[uint32]*fakeQP
	faults     map[uint32]*control.PageRequest
	hold       bool          // work requests of this NIC, and of peers to it, wait
	steps      int           // with hold: how many work requests of this NIC are tried all the same
	late       chan struct{} // not nil: answers to commands that come now wait for it
	lose       bool
	deaf       bool
	noMore     bool
	noPath     bool
	polls      int
	answers    int
	wrongOrder bool
}

type fakeMR struct {
	control.MR
	pages map[uint64][]byte // of an MR on demand
}

type fakeCQ struct {
	wcs         []control.WC
	depth, used int // used: entries taken, of depth
	armed       bool
}

type fakeQP struct {
	control.QP
	n            *fakeNIC
	number       uint32
	state        control.QPState
	cause        control.WCStatus
	path         control.QPPath
	sends, recvs []control.WR
}

func (f *fabric) add(t testing.TB, addr string) *fakeNIC {
	n := &fakeNIC{t: t, f: f, limits: control.RDMALimits{PDs: 4, MRs: 16, Ranges: 1000, CQs: 8, Depth: 256, QPs: 8,
		SGEs: 4, Reads: 16, MTU: 1024, Flags: control.RDMAOnDemand, Length: 1 << 30, Requests: 64},
		guest:   make([]byte, 1<<20),
		buffers: map[uint32][]byte{1: make([]byte, 1<<20), 2: make([]byte, 1<<16)}}
	n.gen.Store(7)
	n.clear()
	n.d = control.NewDispatcher(n)
	n.client = control.NewClient(n, control.ClientOptions{})
	t.Cleanup(func() {
		n.client.Close()
		n.inFlight.Wait()
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nics[netip.MustParseAddr(addr)] = n
	return n
}

func (n *fakeNIC) clear() {
	n.last = 0 // numbers are used again
	n.pds, n.mrs, n.cqs = map[uint32]bool{}, map[uint32]*fakeMR{}, map[uint32]*fakeCQ{}
	n.qps, n.faults = map[uint32]*fakeQP{}, map[uint32]*control.PageRequest{}
}

// Send implements control.Sender.
func (n *fakeNIC) Send(frame []byte) error {
	n.f.mu.Lock()
	deaf, late := n.deaf, n.late
	n.f.mu.Unlock()
	if deaf {
		return nil
	}
	frame = slices.Clone(frame)
	n.inFlight.Go(func() {
		reply := n.d.Handle(frame, make([]byte, 0, control.MaxFrame))
		if late != nil {
			<-late
		}
		if reply != nil {
			n.client.Receive(reply)
		}
	})
	return nil
}

// reset is a device reset; the next answer or notify reports it.
func (n *fakeNIC) reset() {
	n.f.mu.Lock()
	n.clear()
	n.gen.Add(1)
	n.f.mu.Unlock()
	n.d.Reset()
}

func (n *fakeNIC) set(f func()) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	f()
}

func (n *fakeNIC) release() {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	n.hold = false
	n.f.run()
}

func (n *fakeNIC) asked() int {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	return n.polls
}

func (n *fakeNIC) empty() bool {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	return len(n.pds)+len(n.mrs)+len(n.cqs)+len(n.qps) == 0
}

func (n *fakeNIC) number() uint32 { n.last += 3; return 16 + n.last }

func (n *fakeNIC) Generation() uint32 { return n.gen.Load() }

func (n *fakeNIC) Info() (control.Info, error) { return control.Info{Generation: n.gen.Load()}, nil }

func (n *fakeNIC) RDMALimits() (control.RDMALimits, error) { return n.limits, nil }

func (n *fakeNIC) AddPD() (uint32, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	id := n.number()
	n.pds[id] = true
	return id, nil
}

func (n *fakeNIC) DelPD(id uint32) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	for _, m := range n.mrs {
		if m.PD == id {
			return syscall.EBUSY
		}
	}
	for _, q := range n.qps {
		if q.PD == id {
			return syscall.EBUSY
		}
	}
	return del(n.pds, id)
}

func del[V any](m map[uint32]V, id uint32) error {
	if _, ok := m[id]; !ok {
		return syscall.ENOENT
	}
	delete(m, id)
	return nil
}

func (n *fakeNIC) AddMR(m control.MR) (uint32, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if !n.pds[m.PD] || m.Kind == control.MRBuffer && n.buffers[m.Buffer] == nil {
		return 0, syscall.ENOENT
	}
	if b := uint64(len(n.buffers[m.Buffer])); m.Kind == control.MRBuffer && (m.Off > b || m.Len > b-m.Off) {
		return 0, syscall.EINVAL
	}
	m.Key = n.number()
	m.Ranges = slices.Clone(m.Ranges)
	n.mrs[m.Key] = &fakeMR{m, map[uint64][]byte{}}
	return m.Key, nil
}

func (n *fakeNIC) MoreMR(more control.MRMore) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	m := n.mrs[more.Key]
	if m == nil {
		return syscall.ENOENT
	}
	if n.noMore || len(m.Ranges)+len(more.Ranges) > int(n.limits.Ranges) {
		return syscall.ENOSPC
	}
	m.Ranges = append(m.Ranges, more.Ranges...)
	return nil
}

func (n *fakeNIC) DelMR(key uint32) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	return del(n.mrs, key)
}

func (n *fakeNIC) AddCQ(depth uint32) (uint32, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if depth == 0 || depth > 4*n.limits.Depth {
		return 0, syscall.EINVAL
	}
	id := n.number()
	n.cqs[id] = &fakeCQ{depth: int(depth), armed: true}
	return id, nil
}

func (n *fakeNIC) DelCQ(id uint32) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	for _, q := range n.qps {
		if q.SendCQ == id || q.RecvCQ == id {
			return syscall.EBUSY
		}
	}
	return del(n.cqs, id)
}

func (n *fakeNIC) PollCQ(p control.Poll) (c control.Completions, err error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	cq := n.cqs[p.CQ]
	if cq == nil {
		return c, syscall.ENOENT
	}
	n.polls++
	k := min(int(p.Max), control.MaxWCs, len(cq.wcs))
	c.WCs, cq.wcs = slices.Clone(cq.wcs[:k]), cq.wcs[k:]
	cq.used -= k
	c.More = len(cq.wcs) > 0
	cq.armed = !c.More
	if n.wrongOrder {
		slices.Reverse(c.WCs)
	}
	return c, nil
}

func (n *fakeNIC) AddQP(q control.QP) (uint32, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if !n.pds[q.PD] || n.cqs[q.SendCQ] == nil || n.cqs[q.RecvCQ] == nil {
		return 0, syscall.ENOENT
	}
	if q.MaxSend == 0 || max(q.MaxSend, q.MaxRecv) > n.limits.Depth {
		return 0, syscall.EINVAL
	}
	qpn := n.number()
	n.qps[qpn] = &fakeQP{QP: q, n: n, number: qpn, state: control.QPInit}
	return qpn, nil
}

func (n *fakeNIC) ConnectQP(p control.QPPath) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	q := n.qps[p.QPN]
	switch {
	case q == nil:
		return syscall.ENOENT
	case n.noPath:
		return fmt.Errorf("no way to the \x01\"peer\": %w", syscall.EINVAL)
	case q.state != control.QPInit:
		return syscall.EISCONN
	}
	q.path, q.state = p, control.QPReady
	return nil
}

func (n *fakeNIC) DelQP(qpn uint32) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if q := n.qps[qpn]; q != nil {
		n.cqs[q.SendCQ].used -= len(q.sends)
		n.cqs[q.RecvCQ].used -= len(q.recvs)
	}
	return del(n.qps, qpn)
}

func (n *fakeNIC) QPStatus(qpn uint32) (control.QPStatus, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	q := n.qps[qpn]
	if q == nil {
		return control.QPStatus{}, syscall.ENOENT
	}
	return control.QPStatus{QPN: qpn, State: q.state, Cause: q.cause, Sends: uint32(len(q.sends)),
		Recvs: uint32(len(q.recvs))}, nil
}

func (n *fakeNIC) PostSend(p control.Post) error { return n.post(p, true) }
func (n *fakeNIC) PostRecv(p control.Post) error { return n.post(p, false) }

func (n *fakeNIC) post(p control.Post, send bool) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	q := n.qps[p.QPN]
	if q == nil {
		return syscall.ENOENT
	}
	if send && q.state == control.QPInit {
		return syscall.ENOTCONN
	}
	queue, limit, cq := &q.sends, q.MaxSend, n.cqs[q.SendCQ]
	if !send {
		queue, limit, cq = &q.recvs, q.MaxRecv, n.cqs[q.RecvCQ]
	}
	for _, w := range p.WRs {
		if send == (w.Op == control.WRRecv) {
			return syscall.EINVAL
		}
	}
	if len(p.WRs) > int(limit)-len(*queue) || len(p.WRs) > cq.depth-cq.used {
		return syscall.ENOSPC
	}
	cq.used += len(p.WRs)
	*queue = append(*queue, p.WRs...)
	if q.state == control.QPError {
		q.fail(q.cause)
	}
	n.f.run()
	return nil
}

func (f *fabric) run() {
	for again := true; again; {
		again = false
		for _, n := range f.nics {
			for _, q := range n.qps {
				again = q.step() || again
			}
		}
	}
}

// complete removes the first work request of a queue, and makes a completion for it unless silent is set.
func (q *fakeQP) complete(queue *[]control.WR, cq uint32, wc control.WC, silent bool) {
	w := (*queue)[0]
	*queue = (*queue)[1:]
	c := q.n.cqs[cq]
	if silent {
		c.used--
		return
	}
	wc.ID, wc.QPN, wc.Op = w.ID, q.number, w.Op
	c.wcs = append(c.wcs, wc)
	if c.armed && !q.n.lose {
		q.n.client.Receive(q.n.d.NotifyCompletions(nil, [6]byte{}, cq))
	}
	c.armed = false
}

func (q *fakeQP) fail(cause control.WCStatus) {
	if q.state != control.QPError {
		q.state, q.cause = control.QPError, cause
	}
	for len(q.sends) > 0 {
		q.complete(&q.sends, q.SendCQ, control.WC{Status: control.WCFlushed}, false)
	}
	for len(q.recvs) > 0 {
		q.complete(&q.recvs, q.RecvCQ, control.WC{Status: control.WCFlushed}, false)
	}
}

func (q *fakeQP) step() bool {
	if q.state != control.QPReady || len(q.sends) == 0 || q.n.hold && q.n.steps == 0 {
		return false
	}
	q.n.steps = max(q.n.steps-1, 0)
	w := q.sends[0]
	peerNIC := q.n.f.nics[q.path.Remote]
	var peer *fakeQP
	if peerNIC != nil {
		peer = peerNIC.qps[q.path.RemoteQPN]
	}
	if peer == nil || peer.path.RemoteQPN != q.number {
		return q.ends(nil, control.WC{Status: control.WCRetriesExceeded})
	}
	if peer.state == control.QPInit || peer.n.hold {
		return false
	}
	if peer.state == control.QPError {
		return q.ends(nil, control.WC{Status: control.WCRetriesExceeded})
	}
	if p, o := q.path, peer.path; p.MTU != o.MTU || p.SendPSN != o.RecvPSN || p.RecvPSN != o.SendPSN {
		q.n.t.Errorf("the ends of a connection do not match: %+v, %+v", q.path, peer.path)
	}
	size := uint64(0)
	for _, s := range w.SGEs {
		size += uint64(s.Len)
	}
	need := uint8(0)
	if w.Op == control.WRRead {
		need = control.AccessLocalWrite
	}
	local, status, wait := q.n.sges(q.PD, w.SGEs, need)
	if wait || status != 0 {
		return !wait && q.ends(nil, control.WC{Status: status})
	}
	imm := w.Op == control.WRWriteImm || w.Op == control.WRSendImm
	receive := control.WC{HasImm: imm, Imm: w.Imm, Len: uint32(size)}
	if takes := imm || w.Op == control.WRSend; takes && len(peer.recvs) == 0 {
		return false // receiver not ready
	}
	switch w.Op {
	case control.WRWrite, control.WRWriteImm, control.WRRead:
		need := uint8(control.AccessRemoteWrite)
		if w.Op == control.WRRead {
			need = control.AccessRemoteRead
		}
		remote, status, wait := peer.n.memory(peer.PD, w.Key, w.Remote, size, need)
		switch {
		case wait:
			return false
		case status == control.WCPagesUnavailable:
			return q.ends(peer, control.WC{Status: control.WCRemoteOperation})
		case status != 0:
			return q.ends(peer, control.WC{Status: control.WCRemoteAccess})
		case w.Op == control.WRRead:
			move(local, remote)
		default:
			move(remote, local)
		}
		if imm {
			peer.complete(&peer.recvs, peer.RecvCQ, receive, false)
		}
	case control.WRSend, control.WRSendImm:
		into, status, wait := peer.n.sges(peer.PD, peer.recvs[0].SGEs, control.AccessLocalWrite)
		if wait {
			return false
		}
		room := uint64(0)
		for _, b := range into {
			room += uint64(len(b))
		}
		if status != 0 || room < size {
			peer.complete(&peer.recvs, peer.RecvCQ, control.WC{Status: max(status, control.WCLocalLength)}, false)
			return q.ends(peer, control.WC{Status: control.WCRemoteInvalid})
		}
		move(into, local)
		peer.complete(&peer.recvs, peer.RecvCQ, receive, false)
	default:
		q.n.t.Errorf("work request %+v", w)
	}
	return q.ends(nil, control.WC{Len: uint32(size)})
}

// ends completes the first work request of q.sends. If wc is a failure, q and peer, if not nil, go to the error state.
func (q *fakeQP) ends(peer *fakeQP, wc control.WC) bool {
	silent := wc.Status == 0 && q.sends[0].Flags&control.WRSignaled == 0
	q.complete(&q.sends, q.SendCQ, wc, silent)
	if wc.Status != 0 {
		q.fail(wc.Status)
		if peer != nil {
			peer.fail(wc.Status)
		}
	}
	return true
}

func move(dst, src [][]byte) {
	all := slices.Concat(src...)
	for _, d := range dst {
		all = all[copy(d, all):]
	}
}

func (n *fakeNIC) sges(pd uint32, sges []control.SGE, need uint8) (all [][]byte, s control.WCStatus, wait bool) {
	for _, g := range sges {
		b, status, wait := n.memory(pd, g.Key, g.VA, uint64(g.Len), need)
		if status == control.WCRemoteAccess {
			status = control.WCLocalProtection
		}
		if status != 0 || wait {
			return nil, status, wait
		}
		all = append(all, b...)
	}
	return all, 0, false
}

func (n *fakeNIC) memory(pd, key uint32, va, size uint64, need uint8) (all [][]byte, s control.WCStatus, wait bool) {
	if size == 0 {
		return nil, 0, false
	}
	m := n.mrs[key]
	if m == nil || m.PD != pd || m.Access&need != need || va < m.VA || va-m.VA > m.Len || size > m.Len-(va-m.VA) {
		return nil, control.WCRemoteAccess, false
	}
	off := va - m.VA
	switch m.Kind {
	case control.MRBuffer:
		return [][]byte{n.buffers[m.Buffer][m.Off+off:][:size]}, 0, false
	case control.MROnDemand:
		return n.paged(m, m.Off+off, size, need&control.AccessRemoteRead == 0)
	}
	for _, r := range m.Ranges {
		if off >= r.Len {
			off -= r.Len
			continue
		}
		k := min(size, r.Len-off)
		all = append(all, n.guest[r.IOVA+off:][:k])
		if size, off = size-k, 0; size == 0 {
			return all, 0, false
		}
	}
	return nil, control.WCRemoteAccess, false // ranges are missing
}

func (n *fakeNIC) paged(m *fakeMR, off, size uint64, write bool) (all [][]byte, s control.WCStatus, wait bool) {
	for size > 0 {
		page, in := off/4096, off%4096
		b, known := m.pages[page]
		if known && b == nil {
			return nil, control.WCPagesUnavailable, false
		}
		if !known {
			for _, r := range n.faults {
				if r.Key == m.Key && r.First == page {
					return nil, 0, true
				}
			}
			r := &control.PageRequest{ID: n.number(), Key: m.Key, Region: m.Buffer, Count: 1, Write: write, First: page}
			n.faults[r.ID] = r
			if !n.lose {
				n.client.Receive(n.d.NotifyPages(nil, [6]byte{}, r))
				n.client.Receive(n.d.NotifyPages(nil, [6]byte{}, r)) // a repeat
			}
			return nil, 0, true
		}
		k := min(size, 4096-in)
		all, off, size = append(all, b[in:][:k]), off+k, size-k
	}
	return all, 0, false
}

func (n *fakeNIC) RDMACounts() (c control.RDMAPortCounts, err error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	c.Out.Messages = uint64(n.polls)
	return c, nil
}

func (n *fakeNIC) SetMailbox(control.Mailbox) error { return nil }

func (n *fakeNIC) PageRequests() (rs []control.PageRequest, err error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	for _, r := range n.faults {
		rs = append(rs, *r)
	}
	slices.SortFunc(rs, func(a, b control.PageRequest) int { return int(a.ID) - int(b.ID) })
	return rs, nil
}

func (n *fakeNIC) AnswerPages(a control.PageAnswer) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	r := n.faults[a.ID]
	if r == nil {
		return syscall.ENOENT
	}
	n.answers++
	delete(n.faults, a.ID)
	m := n.mrs[r.Key]
	if m == nil {
		return syscall.ENOENT
	}
	for i := range uint64(r.Count) {
		m.pages[r.First+i] = nil
		if a.Errno == 0 {
			m.pages[r.First+i] = n.guest[a.Entries[i]:][:4096]
		}
	}
	n.f.run()
	return nil
}

func (n *fakeNIC) PageCounts(key uint32) (c control.PageCounts, err error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if m := n.mrs[key]; m == nil || m.Kind != control.MROnDemand {
		return c, syscall.EINVAL
	}
	return control.PageCounts{Answers: uint64(n.answers)}, nil
}

type end struct {
	nic  *fakeNIC
	d    *Device
	pd   *PD
	cq   *CQ
	qp   *QP
	mr   *MR // all of buffer 1
	ends Ends
}

const everyAccess = LocalWrite | RemoteWrite | RemoteRead

func open(t testing.TB, f *fabric, i byte) *end {
	t.Helper()
	addr := netip.AddrFrom4([4]byte{10, 0, 0, i})
	e := &end{nic: f.add(t, addr.String())}
	e.d = testkit.Must(Open(e.nic.client))(t)
	e.pd = testkit.Must(e.d.AllocPD())(t)
	e.cq = testkit.Must(e.d.NewCQ(64))(t)
	e.mr = testkit.Must(e.pd.RegisterBuffer(1, 0, 1<<20, everyAccess))(t)
	e.qp = testkit.Must(e.pd.NewQP(QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 40, MaxRecv: 10}))(t)
	e.ends = Ends{Addr: addr, MAC: [6]byte{2, 0, 0, 0, 0, i}, Offer: e.mr.Remote()}
	return e
}

// pair makes two connected ends. Buffer 1 of a's NIC is full of numbers, buffer 1 of b's of zeroes.
func pair(t testing.TB) (a, b *end, peerOfA Peer) {
	t.Helper()
	f := &fabric{nics: map[netip.Addr]*fakeNIC{}}
	a, b = open(t, f, 1), open(t, f, 2)
	pa, _, errA, errB := exchangeOver(t, a, b)
	testkit.OK(t, errA)
	testkit.OK(t, errB)
	for i := 0; i < len(a.nic.buffers[1]); i += 4 {
		binary.LittleEndian.PutUint32(a.nic.buffers[1][i:], uint32(i)*2654435761)
	}
	return a, b, pa
}

func exchangeOver(t testing.TB, a, b *end) (pa, pb Peer, errA, errB error) {
	ca, cb := net.Pipe()
	defer ca.Close()
	defer cb.Close()
	var wg sync.WaitGroup
	wg.Go(func() { pb, errB = Exchange(t.Context(), cb, b.qp, b.ends) })
	pa, errA = Exchange(t.Context(), ca, a.qp, a.ends)
	wg.Wait()
	return pa, pb, errA, errB
}
