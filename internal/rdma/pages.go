package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/control"
)

// OnDemand describes memory that is not pinned: the NIC requests its pages from the driver when it needs them.
type OnDemand struct {
	Region uint32 // number of the memory in the driver that finds the pages
	GPU    uint16 // number of the GPU whose private pages the memory may use; it needs a mailbox (Device.SetMailbox)
	Off    uint64 // offset of the memory's first byte in its first page
	Len    uint64
	VA     uint64 // address of the first byte in the MR
	Access uint8
}

// PageFunc finds the pages of a request, and returns an entry for each page in order, or an Errno. The PageServer
// sets the ID of the result, and makes it an EIO if the number of entries is wrong. Several calls may run at the same
// time.
type PageFunc func(ctx context.Context, r control.PageRequest) control.PageAnswer

const (
	defaultWorkers = 4
	pageQueue      = 256                    // most requests that wait for a worker
	pagePoll       = 100 * time.Millisecond // between lists: a notify may be lost, and requests expire after limits.Page
)

// PageStats counts the work of a PageServer.
type PageStats struct {
	Requests uint64 // put into the workers' queue
	Answered uint64 // answers with entries that the NIC accepted
	Refused  uint64 // answers with an errno that the NIC accepted
	Late     uint64 // answers to requests that the NIC no longer had
	Failed   uint64 // answers that the NIC refused for another reason, or did not acknowledge
	Listed   uint64 // of Requests: found by a list, not by a notify
	Put      uint64 // requests dropped, as the queue was full; the NIC repeats and lists them
}

// PageServer answers the NIC's requests for pages of the MRs that its method Register made.
type PageServer struct {
	d       *Device
	find    PageFunc
	workers int

	mu    sync.Mutex
	keys  map[uint32]struct{} // under mu: of the server's MRs
	busy  map[uint32]struct{} // under mu: ids in the queue or with a worker
	since map[uint32]struct{} // under mu: ids answered since list last asked: its result may still have them
	queue chan control.PageRequest
	stats PageStats
}

// NewPageServer returns a server with the given number of workers (4 if it is 0 or less), which answers while Serve
// runs. EOPNOTSUPP: the NIC has no MRs on demand.
func NewPageServer(d *Device, find PageFunc, workers int) (*PageServer, error) {
	if d.Limits.Flags&control.RDMAOnDemand == 0 {
		return nil, fmt.Errorf("this NIC has no memory regions on demand: %w", syscall.EOPNOTSUPP)
	}
	if workers <= 0 {
		workers = defaultWorkers
	}
	return &PageServer{d: d, find: find, workers: workers, queue: make(chan control.PageRequest, pageQueue),
		keys: make(map[uint32]struct{}), busy: make(map[uint32]struct{}), since: make(map[uint32]struct{})}, nil
}

// Register makes an MR on demand. Serve answers the NIC's requests for its pages.
func (s *PageServer) Register(pd *PD, m OnDemand) (*MR, error) {
	if pd.d != s.d {
		return nil, fmt.Errorf("the protection domain is another device's: %w", syscall.EINVAL)
	}
	mr, err := pd.register(control.MR{Kind: control.MROnDemand, Access: m.Access, Buffer: m.Region, VA: m.VA, Len: m.Len,
		Off: m.Off, GPU: m.GPU})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[mr.Key] = struct{}{}
	mr.ended = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.keys, mr.Key)
	}
	return mr, nil
}

// PageCounts reads the NIC's counters of an MR on demand.
func (m *MR) PageCounts(ctx context.Context) (control.PageCounts, error) {
	return ask(ctx, m.pd.d, func(ctx context.Context) (control.PageCounts, error) {
		return m.pd.d.client.PageCounts(ctx, m.Key)
	})
}

// Stats returns the counters.
func (s *PageServer) Stats() PageStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Serve answers requests until ctx ends, and then returns nil. It returns ErrReset after a reset of the port, and
// net.ErrClosed if a command to the NIC finds the device or its client closed; without MRs (Device.Close closes them)
// it may send no command. When it returns, no worker runs.
func (s *PageServer) Serve(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var wg sync.WaitGroup
	undo := s.d.client.OnRDMA(control.RDMAEvents{
		Pages: func(r control.PageRequest) { s.take(r, false) },
		Reset: func(uint32, uint32) { end(ErrReset) },
	})
	for range s.workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				select {
				case r := <-s.queue:
					if err := s.answer(ctx, r); err != nil {
						end(err)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	s.list(ctx, end)
	undo()
	wg.Wait()
	s.drop()
	if err := context.Cause(ctx); errors.Is(err, ErrReset) || errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// take queues a request for the workers, unless its MR is not the server's, it is queued or with a worker, the queue
// is full, or a list that may be older than its answer names it. It does not wait for room.
func (s *PageServer) take(r control.PageRequest, listed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ours := s.keys[r.Key]
	_, answered := s.since[r.ID]
	if _, busy := s.busy[r.ID]; busy || !ours || listed && answered {
		return
	}
	select {
	case s.queue <- r:
		s.busy[r.ID] = struct{}{}
		s.stats.Requests++
		if listed {
			s.stats.Listed++
		}
	default:
		s.stats.Put++ // the NIC repeats and lists it until it expires
	}
}

func (s *PageServer) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.busy)
	for len(s.queue) > 0 {
		<-s.queue
	}
}

// list passes the requests in the NIC's list to take, every pagePoll if the server has MRs, until ctx ends.
func (s *PageServer) list(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(pagePoll)
	defer tick.Stop()
	for ctx.Err() == nil {
		s.mu.Lock()
		some := len(s.keys) > 0
		clear(s.since)
		s.mu.Unlock()
		if some {
			rs, err := ask(ctx, s.d, s.d.client.PageRequests)
			if errors.Is(err, ErrReset) || errors.Is(err, net.ErrClosed) {
				end(err)
			}
			for _, r := range rs {
				s.take(r, true)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// answer calls find for a request and sends the NIC the result. It returns only ErrReset and net.ErrClosed as errors.
func (s *PageServer) answer(ctx context.Context, r control.PageRequest) error {
	a := s.find(ctx, r)
	a.ID = r.ID
	if a.Errno == 0 && len(a.Entries) != int(r.Count) {
		a.Errno = uint16(syscall.EIO) // wrong entries would be worse than none
	}
	if a.Errno != 0 {
		a.Entries = nil
	}
	if a.Errno != 0 && ctx.Err() != nil { // find may have been interrupted: leave the request to the next Serve
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, r.ID)
		return nil
	}
	err := s.d.ask(context.WithoutCancel(ctx), func(ctx context.Context) error { return s.d.client.AnswerPages(ctx, a) })
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, r.ID)
	s.since[r.ID] = struct{}{}
	switch {
	case err == nil && a.Errno == 0:
		s.stats.Answered++
	case err == nil:
		s.stats.Refused++
	case errors.Is(err, ErrReset) || errors.Is(err, net.ErrClosed):
		return err
	case errors.Is(err, syscall.ENOENT):
		s.stats.Late++
	default:
		s.stats.Failed++
	}
	return nil
}
