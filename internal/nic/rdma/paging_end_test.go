package rdma

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/mailbox"
	"vnic.dev/vnic/internal/testkit"
)

// endingBox is a mailbox whose driver goes away (gone), or finds no slot for an invalidation (lost).
type endingBox struct {
	*fakeBox
	gone atomic.Bool
	lost atomic.Uint32
}

func (b *endingBox) Alive() bool  { return !b.gone.Load() }
func (b *endingBox) Lost() uint32 { return b.lost.Load() }

// At end b, parked WRITEs, READs whose answer cannot be read, and b's own WRITE wait for pages. Page requests are
// answered after the region has ended.
//
// Invariant: vnic rdma: If a region ends while packets wait for its pages, requests end with an
// error, other queue pairs continue, and nothing is written to its pages any more.
func TestRegionEndsWhilePacketsWait(t *testing.T) {
	const bound = 2 * time.Second
	failed := func(reason uint32) func(p *pair, b *endingBox, _ *owner, _ uint32) {
		return func(p *pair, b *endingBox, o *owner, _ uint32) {
			o.gen++
			if !b.tell(mailbox.Request{Region: 7, Pages: uint64(len(o.pages)), Generation: o.gen, Reason: reason}, bound) {
				p.b.t.Error("it was not acknowledged")
			}
		}
	}
	for _, c := range []struct {
		name        string
		end         func(p *pair, b *endingBox, o *owner, key uint32)
		quarantined bool
	}{
		{"closed", failed(mailbox.Closed), false},
		{"removed", failed(mailbox.Removed), false},
		{"the driver is gone", func(_ *pair, b *endingBox, _ *owner, _ uint32) { b.gone.Store(true) }, false},
		{"something was given up", func(_ *pair, b *endingBox, _ *owner, _ uint32) { b.lost.Add(1) }, true},
		{"given up", func(p *pair, b *endingBox, o *owner, _ uint32) {
			p.b.DelayAcks(-1)
			o.gen++
			if b.tell(mailbox.Request{Region: 7, Pages: 1, Generation: o.gen}, time.Second/4) {
				p.b.t.Error("it was acknowledged")
			}
		}, true},
		{"the memory region is closed", func(p *pair, _ *endingBox, _ *owner, key uint32) {
			testkit.OK(p.b.t, p.b.DelMR(key))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const pages = 16
				p := newPair(t, func(p *control.QPPath) { p.Timeout = 18 })
				box := &endingBox{fakeBox: &p.b.box}
				p.b.c.Mailbox = func(uint16, uint64) (Mailbox, error) { return box, nil }
				o, key := newOwner(p.b, pages)
				defer p.stopped()

				// NIC b gets the first page; later page requests get no answer.
				first := control.WR{Op: control.WRWrite, Flags: control.WRSignaled, Key: key, Remote: 0x1000,
					SGEs: []control.SGE{p.a.sge(0, 10)}}
				p.a.post(p.qa, first)
				p.runPaged(o)
				testkit.Equal(t, "the first", p.a.poll()[0].Status, control.WCSuccess)
				o.mute = true
				reader, _ := p.connect(func(p *control.QPPath) { p.Timeout = 18 })
				_, writer := p.connect(func(p *control.QPPath) { p.Timeout = 18 })
				known, _ := p.connect(func(p *control.QPPath) { p.Timeout = 18 })
				other, _ := p.connect(func(p *control.QPPath) { p.Timeout = 18 })
				p.a.post(p.qa, control.WR{ID: 1, Op: control.WRWrite, Flags: control.WRSignaled, Key: key,
					Remote: 0x1000 + onePage - 100, SGEs: []control.SGE{p.a.sge(0, 3*onePage)}})
				p.a.post(reader, control.WR{ID: 2, Op: control.WRRead, Flags: control.WRSignaled, Key: key,
					Remote: 0x1000 + 6*onePage, SGEs: []control.SGE{p.a.sge(400_000, onePage)}})
				p.b.post(writer, control.WR{ID: 3, Op: control.WRWrite, Flags: control.WRSignaled, Key: p.a.mr,
					Remote: base + 500_000, SGEs: []control.SGE{{VA: 0x1000 + 9*onePage, Len: 10, Key: key}}})
				for range 100 {
					p.step(p.a, p.b)
					p.step(p.b, p.a)
				}
				asked := slices.Clone(p.b.pages)
				if len(asked) < 3 || len(p.a.poll())+len(p.b.poll()) > 0 {
					t.Fatalf("what was asked for: %+v", asked)
				}

				begin := time.Now()
				c.end(p, box, o, key)
				time.Sleep(10 * pollIdle) // of the bubble's time: lets the mailbox be polled
				for i := range pages {
					copy(o.bytes(i), bytes.Repeat([]byte{poisoned}, onePage))
				}
				o.mute, o.gen = false, o.gen+1
				p.b.pages = append(p.b.pages, asked...) // the answers come late
				first.ID = 4
				p.a.post(known, first)
				p.a.post(other, control.WR{ID: 5, Op: control.WRWrite, Flags: control.WRSignaled, Key: p.b.mr, Remote: base + 10,
					SGEs: []control.SGE{p.a.sge(0, 10)}})
				p.runPaged(o)
				if took := time.Since(begin); took > bound {
					t.Errorf("it took %v", took)
				}
				got := append(p.a.poll(), p.b.poll()...)
				slices.SortFunc(got, func(a, b control.WC) int { return int(a.ID) - int(b.ID) })
				if len(got) != 5 {
					t.Fatalf("completions: %+v", got)
				}
				for i, w := range got {
					if w.ID != uint64(i+1) || (w.Status == control.WCSuccess) != (i == 4) {
						t.Errorf("%+v", w)
					}
				}
				for i := range pages {
					if b := o.bytes(i); slices.ContainsFunc(b, func(x byte) bool { return x != poisoned }) {
						t.Errorf("page %d was written to", i)
					}
				}
				if n := p.b.paging.parked.taken; n != 0 {
					t.Errorf("%d bytes wait still", n)
				}
				if k, err := p.b.PageCounts(key); err == nil && (k.Quarantined == 1) != c.quarantined {
					t.Errorf("%+v", k)
				}
			})
		})
	}
}

// A worker that looks for page requests to send, and a goroutine that finds pages missing, do not deadlock.
func TestPagesAreMissedWhileTheWorkerLooks(t *testing.T) {
	p := newPair(t, nil)
	_, key := newOwner(p.b, 4)
	defer p.stopped()
	r, q := p.b.regionOf(key), p.b.qpOf(p.qb)
	done := make(chan struct{})
	var looks, misses sync.WaitGroup
	looks.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				p.b.Pending()
				p.b.pop() // otherwise Pending would return before it looks at paging
			}
		}
	})
	misses.Go(func() {
		for range 50_000 {
			if _, got := r.pages.places(nil, q, 0, 1, 0, dma.Write); got != awaited {
				t.Errorf("outcome %d", got)
				return
			}
			rs, err := p.b.PageRequests()
			if err != nil || len(rs) != 1 {
				t.Errorf("%+v, %v", rs, err)
				return
			}
			later := control.PageAnswer{ID: rs[0].ID, Entries: []uint64{uint64(syscall.EAGAIN) << answerErrno}}
			if err := p.b.AnswerPages(later); err != nil {
				t.Error(err)
				return
			}
			p.b.paging.askAll()
		}
	})
	misses.Wait()
	close(done)
	looks.Wait()
}
