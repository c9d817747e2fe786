package rdma

import (
	"fmt"
	"math"
	"syscall"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
)

const (
	maxPaged    = 16
	maxRequests = 64
)

type paged struct{}
type paging struct{}
type parkedPackets struct{ n int }

func (p *paging) init(*Engine)       {}
func (p *paging) reset()             {}
func (p *paging) tick(t int64) int64 { return math.MaxInt64 }
func (p *paging) askAll()            {}

func (p *paged) places(dst []dma.Segment, off, n uint64, a dma.Access) ([]dma.Segment, outcome) {
	return dst, notToGet
}
func (e *Engine) addPaged(r *region) error {
	return fmt.Errorf("mr: pages on demand are not there yet: %w", syscall.EOPNOTSUPP)
}
func (e *Engine) delPaged(*paged)                                  {}
func (e *Engine) isPaged(key uint32) bool                          { return false }
func (q *qp) await(key uint32)                                     {}
func (q *qp) park(c *dma.Copier, h *header, n uint32)              { q.refuse(synRNR | 12) }
func (q *qp) parkMore(c *dma.Copier, h *header, n uint32, d int32) {}
func (q *qp) unpark()                                              {}
func (q *qp) dropParked()                                          {}

// SetMailbox implements control.RDMA.
func (e *Engine) SetMailbox(m control.Mailbox) error { return syscall.EOPNOTSUPP }

// PageRequests implements control.RDMA.
func (e *Engine) PageRequests() ([]control.PageRequest, error) { return nil, nil }

// AnswerPages implements control.RDMA.
func (e *Engine) AnswerPages(a control.PageAnswer) error { return syscall.EOPNOTSUPP }

// PageCounts implements control.RDMA.
func (e *Engine) PageCounts(key uint32) (control.PageCounts, error) {
	return control.PageCounts{}, syscall.EOPNOTSUPP
}

// open says whether requests for pages have no answer.
func (p *paging) open() bool { return false }
