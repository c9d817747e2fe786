package nic

import (
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/rdma"
)

// withRDMA calls f with the port's Engine and q. It makes the Engine if the port has none yet.
func withRDMA[Q, R any](p *Port, f func(*rdma.Engine, Q) (R, error), q Q) (r R, err error) {
	e, err := p.rdma.begin()
	if err != nil {
		return r, err
	}
	return f(e, q)
}

// toRDMA is withRDMA for an f that returns only an error.
func toRDMA[Q any](p *Port, f func(*rdma.Engine, Q) error, q Q) error {
	e, err := p.rdma.begin()
	if err != nil {
		return err
	}
	return f(e, q)
}

// askRDMA is withRDMA for an f without the argument q.
func askRDMA[R any](p *Port, f func(*rdma.Engine) (R, error)) (r R, err error) {
	e, err := p.rdma.begin()
	if err != nil {
		return r, err
	}
	return f(e)
}

// RDMALimits implements control.RDMA.
func (p *Port) RDMALimits() (control.RDMALimits, error) { return askRDMA(p, (*rdma.Engine).RDMALimits) }

// AddPD implements control.RDMA.
func (p *Port) AddPD() (uint32, error) { return askRDMA(p, (*rdma.Engine).AddPD) }

// DelPD implements control.RDMA.
func (p *Port) DelPD(id uint32) error { return toRDMA(p, (*rdma.Engine).DelPD, id) }

// AddMR implements control.RDMA.
func (p *Port) AddMR(m control.MR) (uint32, error) { return withRDMA(p, (*rdma.Engine).AddMR, m) }

// MoreMR implements control.RDMA.
func (p *Port) MoreMR(m control.MRMore) error { return toRDMA(p, (*rdma.Engine).MoreMR, m) }

// DelMR implements control.RDMA.
func (p *Port) DelMR(key uint32) error { return toRDMA(p, (*rdma.Engine).DelMR, key) }

// AddCQ implements control.RDMA.
func (p *Port) AddCQ(depth uint32) (uint32, error) { return withRDMA(p, (*rdma.Engine).AddCQ, depth) }

// DelCQ implements control.RDMA.
func (p *Port) DelCQ(id uint32) error { return toRDMA(p, (*rdma.Engine).DelCQ, id) }

// PollCQ implements control.RDMA.
func (p *Port) PollCQ(c control.Poll) (control.Completions, error) {
	return withRDMA(p, (*rdma.Engine).PollCQ, c)
}

// AddQP implements control.RDMA.
func (p *Port) AddQP(q control.QP) (uint32, error) { return withRDMA(p, (*rdma.Engine).AddQP, q) }

// ConnectQP implements control.RDMA.
func (p *Port) ConnectQP(c control.QPPath) error { return toRDMA(p, (*rdma.Engine).ConnectQP, c) }

// DelQP implements control.RDMA.
func (p *Port) DelQP(qpn uint32) error { return toRDMA(p, (*rdma.Engine).DelQP, qpn) }

// QPStatus implements control.RDMA.
func (p *Port) QPStatus(qpn uint32) (control.QPStatus, error) {
	return withRDMA(p, (*rdma.Engine).QPStatus, qpn)
}

// PostSend implements control.RDMA.
func (p *Port) PostSend(s control.Post) error { return toRDMA(p, (*rdma.Engine).PostSend, s) }

// PostRecv implements control.RDMA.
func (p *Port) PostRecv(s control.Post) error { return toRDMA(p, (*rdma.Engine).PostRecv, s) }

// RDMACounts implements control.RDMA.
func (p *Port) RDMACounts() (control.RDMAPortCounts, error) {
	return askRDMA(p, (*rdma.Engine).RDMACounts)
}

// SetMailbox implements control.RDMA.
func (p *Port) SetMailbox(m control.Mailbox) error { return toRDMA(p, (*rdma.Engine).SetMailbox, m) }

// PageRequests implements control.RDMA.
func (p *Port) PageRequests() ([]control.PageRequest, error) {
	return askRDMA(p, (*rdma.Engine).PageRequests)
}

// AnswerPages implements control.RDMA.
func (p *Port) AnswerPages(a control.PageAnswer) error {
	return toRDMA(p, (*rdma.Engine).AnswerPages, a)
}

// PageCounts implements control.RDMA.
func (p *Port) PageCounts(key uint32) (control.PageCounts, error) {
	return withRDMA(p, (*rdma.Engine).PageCounts, key)
}
