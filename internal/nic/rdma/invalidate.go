package rdma

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/mailbox"
)

// box polls a GPU's mailbox on its own goroutine while the Engine has regions on demand.
type box struct {
	e     *Engine
	gpu   uint16
	m     Mailbox
	lost  uint32        // Mailbox.Lost at the last look
	ended bool          // look has found that the driver has removed the mailbox
	more  chan struct{} // signals that a region was added
	stop  chan struct{}
	done  chan struct{}
	idle  int
}

// SetMailbox implements control.RDMA.
func (e *Engine) SetMailbox(m control.Mailbox) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := &e.paging
	if e.closed {
		return fmt.Errorf("the NIC has ended: %w", syscall.ENODEV)
	}
	if old := g.box(m.GPU); old != nil {
		g.mu.Lock()
		for _, p := range g.regions {
			if p.gpu == m.GPU {
				g.mu.Unlock()
				return fmt.Errorf("mailbox of GPU %d: regions use it: %w", m.GPU, syscall.EBUSY)
			}
		}
		delete(g.boxes, m.GPU)
		g.mu.Unlock()
		old.close()
	}
	found, err := e.c.Mailbox(m.GPU, m.Off)
	if err != nil {
		return fmt.Errorf("mailbox of GPU %d: %w", m.GPU, err)
	}
	b := &box{e: e, gpu: m.GPU, m: found, lost: found.Lost(), more: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{})}
	g.mu.Lock()
	g.boxes[m.GPU] = b
	g.mu.Unlock()
	go b.run()
	return nil
}

func (g *paging) box(gpu uint16) *box {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.boxes[gpu]
}

// reset closes the mailboxes and drops all page requests. The caller has deleted the regions.
func (g *paging) reset() {
	g.mu.Lock()
	boxes := g.boxes
	g.boxes = make(map[uint16]*box)
	g.requests, g.toAsk, g.starved = nil, nil, nil
	g.mu.Unlock()
	for _, b := range boxes {
		b.close()
	}
}

func (b *box) close() {
	close(b.stop)
	<-b.done
}

func (b *box) wake() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

func (b *box) run() {
	defer close(b.done)
	defer b.m.Close()
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		b.idle++
		b.look()
		pause := pollBusy
		if b.idle > 100 {
			pause = pollIdle
		}
		if b.e.paging.count.Load() == 0 {
			select {
			case <-b.more:
			case <-b.stop:
				return
			}
			continue
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-b.stop:
			return
		}
	}
}

func (b *box) look() {
	b.m.Poll(b.take)
	lost := b.m.Lost()
	if b.ended || b.m.Alive() && lost == b.lost {
		return
	}
	// The GPU's driver is gone, or it had no free slot for an invalidation: no page table of the GPU is valid.
	b.lost, b.ended = lost, !b.m.Alive()
	b.e.paging.endAll(b.gpu, !b.ended)
	b.e.users.Wait()
}

// take carries out an invalidation. When no goroutine uses the pages any more, take acknowledges it (late or never with
// DelayAcks), or frees its slot if the driver has given up.
func (b *box) take(v mailbox.Request) {
	b.idle = 0
	e, f := b.e, &b.e.paging.faults
	e.paging.forget(b.gpu, &v, f.keep.Load() && !v.GivenUp)
	e.users.Wait() // for goroutines that found the pages before forget
	if v.GivenUp {
		b.m.Free(v.Slot)
		return
	}
	switch late := time.Duration(f.ackDelay.Load()); {
	case late < 0:
		return // so that the driver gives up
	case late > 0:
		b.sleep(late)
	}
	b.m.Done(v.Slot) // if the driver has given up, this fails, and a later Poll passes the request with GivenUp
}

func (b *box) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.stop:
	}
}

// forget forgets the pages of an invalidation, except those in the GPU with stale. It ends the region instead if the
// driver has given up, the GPU is removed, or the program has closed the region. Requests for the pages stay: an answer
// with an earlier generation than the invalidation is refused.
func (g *paging) forget(gpu uint16, v *mailbox.Request, stale bool) {
	g.mu.Lock()
	var waiters []*qp
	var lost []*paged
	for _, p := range g.regions {
		if p.gpu != gpu || p.region != v.Region {
			continue
		}
		p.counts.Invalidations++
		if v.GivenUp || v.Reason == mailbox.Removed || v.Reason == mailbox.Closed {
			p.end(v.GivenUp)
			waiters = append(waiters, g.wakeAll(p)...)
			continue
		}
		lost = append(lost, p)
	}
	g.mu.Unlock()
	g.e.resume(waiters)
	for _, p := range lost {
		first := min(v.First, uint64(len(p.entries)))
		left := p.entries[first:]
		left = left[:min(v.Pages, uint64(len(left)))]
		for len(left) > 0 {
			k := min(len(left), forgetPiece)
			g.mu.Lock()
			p.forget(left[:k], v.Generation, stale)
			g.mu.Unlock()
			left = left[k:]
		}
	}
}

const forgetPiece = 4096

// forget forgets pages of an invalidation with this generation, except those in the GPU with stale. The caller holds
// paging's mu.
func (p *paged) forget(pages []entry, generation uint32, stale bool) {
	for i := range pages {
		t := &pages[i]
		if stale && t.state == inGPU {
			continue
		}
		if t.state != absent {
			p.counts.Invalidated++
		}
		t.state, t.generation, t.retryAt = absent, generation, 0
	}
}

// end makes the region unusable, and forgets its pages. The caller holds paging's mu.
func (p *paged) end(quarantined bool) {
	p.dead = true
	if quarantined {
		p.counts.Quarantined = 1
	}
	for i := range p.entries {
		if p.entries[i].state != absent {
			p.counts.Invalidated++
		}
		p.entries[i].state = absent
	}
}

func (g *paging) endAll(gpu uint16, quarantined bool) {
	g.mu.Lock()
	var waiters []*qp
	for _, p := range g.regions {
		if p.gpu == gpu {
			p.end(quarantined)
			waiters = append(waiters, g.wakeAll(p)...)
		}
	}
	g.mu.Unlock()
	g.e.resume(waiters)
}

type pagingFaults struct {
	ackDelay atomic.Int64 // of acknowledgments, in nanoseconds; negative: send none
	keep     atomic.Bool  // acknowledge invalidations, but go on using pages in the GPU
	drop     atomic.Int64 // number of answers still to lose
}

func (f *pagingFaults) dropAnswer() bool {
	for {
		n := f.drop.Load()
		if n <= 0 {
			return false
		}
		if f.drop.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// DelayAcks makes the Engine delay its acknowledgments of invalidations by d; negative: it sends none.
func (e *Engine) DelayAcks(d time.Duration) { e.paging.faults.ackDelay.Store(int64(d)) }

// LoseAnswers makes the Engine lose the next n answers to page requests.
func (e *Engine) LoseAnswers(n int) { e.paging.faults.drop.Store(int64(n)) }

// KeepStale sets whether the Engine acknowledges invalidations of pages in the GPU without carrying them out, as a
// broken NIC does, unless they end the region. Pages in RAM are excepted: any process may own such a page
// afterwards.
func (e *Engine) KeepStale(on bool) { e.paging.faults.keep.Store(on) }
