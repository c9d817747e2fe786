package rdma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/mailbox"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// The GPU's memory is the upper half of the guest's memory.
const (
	vramAt  = memSize / 2
	onePage = pageSize
)

func (d *end) gpu(id uint16) *dma.Region {
	if id != 0 {
		return nil
	}
	return testkit.Must(d.file.Region(vramAt, memSize-vramAt))(d.t)
}

// fakeBox is a mailbox without shared memory: tell adds invalidations to a list, which Poll empties.
type fakeBox struct {
	mu    sync.Mutex
	asked []mailbox.Request
	done  map[int]chan struct{}
	last  int
	gone  atomic.Bool
}

func (b *fakeBox) Poll(f func(mailbox.Request)) {
	b.mu.Lock()
	list := b.asked
	b.asked = nil
	b.mu.Unlock()
	for _, r := range list {
		f(r)
	}
}

func (b *fakeBox) end(slot int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.done[slot]
	if c != nil {
		close(c)
		delete(b.done, slot)
	}
	return c != nil
}

func (b *fakeBox) Done(slot int) bool { return b.end(slot) }
func (b *fakeBox) Free(slot int) bool { return b.end(slot) }
func (b *fakeBox) Alive() bool        { return !b.gone.Load() }
func (b *fakeBox) Lost() uint32       { return 0 }
func (b *fakeBox) Close()             {}

// tell posts an invalidation, as a driver does, and returns true when the NIC has acknowledged it. After bound
// it gives up, and returns false when the NIC has freed the slot.
func (b *fakeBox) tell(r mailbox.Request, bound time.Duration) (done bool) {
	b.mu.Lock()
	if b.done == nil {
		b.done = make(map[int]chan struct{})
	}
	b.last++
	r.Slot = b.last
	c := make(chan struct{})
	b.done[r.Slot] = c
	b.asked = append(b.asked, r)
	b.mu.Unlock()
	select {
	case <-c:
		return true
	case <-time.After(bound):
	}
	b.mu.Lock()
	r.GivenUp = true
	b.asked = append(b.asked, r)
	b.mu.Unlock()
	<-c // waits until the NIC has freed the slot
	return false
}

// owner is a process whose pages move, and the driver that moves them, as vnicgpu.ko does, and poisons the
// places that pages have left.
type owner struct {
	d     *end
	mu    sync.Mutex
	pages []place
	free  []uint64 // addresses of free pages: RAM below vramAt, GPU memory from there on
	gen   uint32
	held  []bool // by page: the NIC may access it

	migrations, answers int
	mute                bool // leave page requests without an answer
	errno               syscall.Errno
	quarantined         bool
}

type place struct{ addr uint64 }

const poisoned = 0xdb

// newOwner makes an owner of n pages in RAM and an MR on demand of them, and returns the MR's key. The MR's addresses
// begin at 0x1000.
func newOwner(d *end, n int) (*owner, uint32) {
	d.t.Helper()
	o := &owner{d: d, pages: make([]place, n), held: make([]bool, n)}
	for i := range n { // the pages lie in RAM from 64 KiB on
		o.pages[i].addr = uint64(64<<10 + i*onePage)
	}
	for i := range 2 * n {
		o.free = append(o.free, uint64(vramAt+i*onePage))
		if i < n {
			o.free = append(o.free, uint64(64<<10+(n+i)*onePage))
		}
	}
	for _, addr := range o.free {
		copy(d.mem[addr:addr+onePage], bytes.Repeat([]byte{poisoned}, onePage))
	}
	testkit.OK(d.t, d.SetMailbox(control.Mailbox{}))
	key, err := d.AddMR(control.MR{PD: d.pd, Kind: control.MROnDemand, Buffer: 7, VA: 0x1000, Len: uint64(n * onePage),
		Access: control.AccessLocalWrite | control.AccessRemoteWrite | control.AccessRemoteRead})
	testkit.OK(d.t, err)
	return o, key
}

func (o *owner) bytes(i int) []byte { return o.d.mem[o.pages[i].addr : o.pages[i].addr+onePage] }

// all returns the bytes of all pages of the owner, in order.
func (o *owner) all() (b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.pages {
		b = append(b, o.bytes(i)...)
	}
	return b
}

func (o *owner) answer() {
	asked := o.d.pages
	o.d.pages = nil
	for _, r := range asked {
		if o.mute {
			continue
		}
		a := control.PageAnswer{ID: r.ID, Errno: uint16(o.errno)}
		o.mu.Lock()
		a.Generation = o.gen
		for i := range r.Count {
			p := int(r.First) + int(i)
			if o.pages[p].addr >= vramAt && r.InRAM {
				o.mu.Unlock()
				o.move(p, false)
				o.mu.Lock()
				a.Generation = o.gen
			}
			addr := o.pages[p].addr
			e := addr | answerRAM | answerWritable
			if addr >= vramAt {
				e = addr - vramAt | answerGPU | answerWritable
			}
			o.held[p] = true
			if a.Errno == 0 {
				a.Entries = append(a.Entries, e)
			}
		}
		o.mu.Unlock()
		o.answers++
		if err := o.d.AnswerPages(a); err != nil && !isErrno(err, syscall.ENOENT) {
			o.d.t.Error(err)
		}
	}
}

func isErrno(err error, no syscall.Errno) bool {
	e, ok := err.(interface{ Unwrap() error })
	return ok && e.Unwrap() == no
}

// move moves a page to the GPU or to RAM, if there is room. If the NIC may access the page, an invalidation comes
// first, unless the region is in quarantine.
func (o *owner) move(p int, vram bool) {
	o.mu.Lock()
	k := slices.IndexFunc(o.free, func(addr uint64) bool { return addr >= vramAt == vram })
	if k < 0 {
		o.mu.Unlock()
		return
	}
	o.gen++
	r := mailbox.Request{Region: 7, First: uint64(p), Pages: 1, Generation: o.gen}
	held := o.held[p]
	o.held[p] = false
	to, from := o.free[k], o.pages[p].addr
	o.free = append(slices.Delete(o.free, k, k+1), from)
	o.mu.Unlock()
	if held && !o.quarantined && !o.d.box.tell(r, time.Second) {
		o.quarantined = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	copy(o.d.mem[to:to+onePage], o.d.mem[from:from+onePage])
	for i := range onePage {
		o.d.mem[from+uint64(i)] = poisoned
	}
	o.pages[p].addr = to
	o.migrations++
}

func (o *owner) poisonWhole() bool {
	return !slices.ContainsFunc(o.free[:], func(addr uint64) bool {
		return slices.ContainsFunc(o.d.mem[addr:addr+onePage], func(c byte) bool { return c != poisoned })
	})
}

// storm starts a goroutine that moves pages at random until stop is closed; then it closes done.
func (o *owner) storm(stop chan struct{}, rnd *rand.Rand) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(rnd.IntN(300)) * time.Microsecond):
			}
			p := rnd.IntN(len(o.pages))
			o.move(p, rnd.IntN(2) == 0)
		}
	}()
	return done
}

// pagedPair makes a pair whose end b has a region on demand.
func pagedPair(t *testing.T, pages int) (*pair, *owner, uint32) {
	p := newPair(t, func(p *control.QPPath) { p.Timeout = 18 })
	o, key := newOwner(p.b, pages)
	return p, o, key
}

// runPaged is run with an owner that answers. Time passes between frames, so that pages can move.
func (p *pair) runPaged(o *owner) {
	p.a.t.Helper()
	for range 400_000 {
		some := p.step(p.a, p.b)
		some = p.step(p.b, p.a) || some
		o.answer()
		time.Sleep(20 * time.Microsecond)
		synctest.Wait()
		if !some && !p.waits() {
			return
		}
	}
	p.a.t.Fatalf("no end: %+v %+v", testkit.Must(p.a.QPStatus(p.qa))(p.a.t), testkit.Must(p.b.QPStatus(p.qb))(p.a.t))
}

// stopped closes both Engines, so that the mailboxes' goroutines end before the bubble does.
func (p *pair) stopped() {
	p.a.Close()
	p.b.Close()
}

// Invariant: vnic rdma: While pages move between RAM and GPU during WRITEs and READs, every byte is
// right, and no place is written after its invalidation was acknowledged.
func TestPagesMoveUnderTraffic(t *testing.T) {
	for _, sabotage := range []bool{false, true} {
		t.Run(fmt.Sprint("sabotage=", sabotage), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const pages = 24
				p, o, key := pagedPair(t, pages)
				defer p.stopped()
				p.b.KeepStale(sabotage)
				rnd := rand.New(rand.NewPCG(5, 6))
				p.fate = func(*wire.Packet) (int, bool) {
					if rnd.IntN(200) == 0 {
						return 0, false
					}
					return 1, false
				}
				stop := make(chan struct{})
				done := o.storm(stop, rand.New(rand.NewPCG(7, 8)))
				want := o.all()
				wrong := false
				for i := range uint64(30) {
					n := uint64(1 + rnd.IntN(40_000))
					off := uint64(rnd.IntN(int(pages*onePage - n + 1)))
					for j := range n {
						p.a.mem[100+j] = byte(rnd.Uint32())
					}
					copy(want[off:], p.a.mem[100:100+n])
					p.a.post(p.qa, control.WR{ID: i, Op: control.WRWrite, Flags: control.WRSignaled, Key: key, Remote: 0x1000 + off,
						SGEs: []control.SGE{p.a.sge(100, n)}})
					p.runPaged(o)
					p.a.post(p.qa, control.WR{ID: i, Op: control.WRRead, Flags: control.WRSignaled, Key: key, Remote: 0x1000 + off,
						SGEs: []control.SGE{p.a.sge(200_000, n)}})
					p.runPaged(o)
					for _, w := range p.a.poll() {
						if w.Status != control.WCSuccess {
							t.Fatalf("%+v", w)
						}
					}
					if !bytes.Equal(p.a.mem[200_000:200_000+n], want[off:off+n]) {
						wrong = true
					}
				}
				close(stop)
				<-done
				if !bytes.Equal(o.all(), want) {
					wrong = true
				}
				whole := o.poisonWhole()
				if wrong != sabotage || whole == sabotage {
					t.Errorf("wrong bytes: %t; what was left is whole: %t", wrong, whole)
				}
				c := testkit.Must(p.b.PageCounts(key))(t)
				if !sabotage && (c.Requests == 0 || c.MapsHost == 0 || c.MapsGPU == 0 || c.Invalidated == 0 || c.Parked == 0 ||
					c.GPUBytes == 0 || c.HostBytes == 0) {
					t.Errorf("not all of it happened: %+v", c)
				}
				t.Logf("%d migrations, %+v", o.migrations, c)
			})
		})
	}
}

// If the NIC does not reach the GPU, the pages that it accesses move to RAM, and no others.
func TestPagesComeToRAMWithoutP2P(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const pages = 24
		p, o, key := pagedPair(t, pages)
		defer p.stopped()
		for i := range pages {
			o.move(i, true)
		}
		o.migrations = 0
		p.b.noP2P = true
		const first, n = 3, 5
		want := o.all()
		copy(want[first*onePage+10:], p.a.mem[:(n-1)*onePage])
		p.a.post(p.qa, control.WR{Op: control.WRWrite, Flags: control.WRSignaled, Key: key,
			Remote: 0x1000 + first*onePage + 10, SGEs: []control.SGE{p.a.sge(0, (n-1)*onePage)}})
		p.runPaged(o)
		c := testkit.Must(p.b.PageCounts(key))(t)
		if o.migrations != n || c.MapsGPU != 0 || c.MapsHost != n || c.GPUBytes != 0 || c.HostBytes != (n-1)*onePage {
			t.Errorf("%d migrations, not %d; %+v", o.migrations, n, c)
		}
		if !bytes.Equal(o.all(), want) {
			t.Error("wrong bytes")
		}
	})
}

// The NIC repeats a page request whose answer is lost. It gives up after limits.Page.Here(), or when the answer has no
// page.
func TestPagesThatDoNotCome(t *testing.T) {
	for _, c := range []struct {
		name string
		prep func(p *pair, o *owner)
		want control.WCStatus
	}{
		{"three answers are lost", func(p *pair, _ *owner) { p.b.LoseAnswers(3) }, control.WCSuccess},
		{"nobody answers", func(_ *pair, o *owner) { o.mute = true }, control.WCRemoteOperation},
		{"there is no page", func(_ *pair, o *owner) { o.errno = syscall.EFAULT }, control.WCRemoteOperation},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, o, key := pagedPair(t, 8)
				defer p.stopped()
				c.prep(p, o)
				was := o.all()
				start := time.Now()
				p.a.post(p.qa, control.WR{Op: control.WRWrite, Flags: control.WRSignaled, Key: key, Remote: 0x1000,
					SGEs: []control.SGE{p.a.sge(0, 10)}})
				p.runPaged(o)
				got := p.a.poll()
				if len(got) != 1 || got[0].Status != c.want {
					t.Errorf("%+v, not status %d", got, c.want)
				}
				if c.want != control.WCSuccess && !bytes.Equal(o.all(), was) {
					t.Error("something was written")
				}
				if took := time.Since(start); took > 6*time.Second {
					t.Errorf("it took %v", took)
				}
				qa, _ := p.connect(nil)
				p.a.post(qa, control.WR{Op: control.WRWrite, Flags: control.WRSignaled, Key: p.b.mr, Remote: base + 10,
					SGEs: []control.SGE{p.a.sge(0, 10)}})
				p.runPaged(o)
				if got := p.a.poll(); len(got) != 1 || got[0].Status != control.WCSuccess {
					t.Errorf("another queue pair: %+v", got)
				}
			})
		})
	}
}

// If a NIC never acknowledges an invalidation, the region is put in quarantine, and WRITEs to it fail.
func TestQuarantine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, o, key := pagedPair(t, 8)
		defer p.stopped()
		p.b.DelayAcks(-1)
		write := func() []control.WC {
			p.a.post(p.qa, control.WR{Op: control.WRWrite, Flags: control.WRSignaled, Key: key, Remote: 0x1000,
				SGEs: []control.SGE{p.a.sge(0, 10)}})
			p.runPaged(o)
			return p.a.poll()
		}
		if got := write(); len(got) != 1 || got[0].Status != control.WCSuccess {
			t.Fatalf("%+v", got)
		}
		start := time.Now()
		o.move(0, true)
		if !o.quarantined || time.Since(start) < time.Second {
			t.Errorf("it was acknowledged after %v", time.Since(start))
		}
		if got := write(); len(got) != 1 || got[0].Status != control.WCRemoteOperation {
			t.Errorf("after quarantine: %+v", got)
		}
		if c := testkit.Must(p.b.PageCounts(key))(t); c.Quarantined != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// The responder's parked packets take at most parkedBytes. Packets that it cannot park are sent again.
func TestParkedPacketsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const pages = 100
		p := newPair(t, func(p *control.QPPath) { p.Timeout, p.MTU = 18, 4096 })
		o, key := newOwner(p.b, pages/2)
		defer p.stopped()
		o.mute = true
		n := uint64(pages / 2 * onePage)
		for range 3 { // two of the three queue pairs could fill the pool
			qa, _ := p.connect(func(p *control.QPPath) { p.Timeout, p.MTU = 18, 4096 })
			p.a.post(qa, control.WR{Op: control.WRWrite, Flags: control.WRSignaled, Key: key, Remote: 0x1000,
				SGEs: []control.SGE{p.a.sge(0, n)}})
		}
		for range 2000 {
			p.step(p.a, p.b)
			p.step(p.b, p.a)
		}
		if n := p.b.paging.parked.taken; n != parkedBytes {
			t.Errorf("%d bytes wait, of at most %d", n, parkedBytes)
		}
		o.mute = false
		p.runPaged(o)
		got := p.a.poll()
		for _, w := range got {
			if w.Status != control.WCSuccess {
				t.Errorf("%+v", w)
			}
		}
		c := testkit.Must(p.b.PageCounts(key))(t)
		if n := p.b.paging.parked.taken; n != 0 {
			t.Errorf("%d bytes wait, and nobody for a page", n)
		}
		if len(got) != 3 || c.NotReady == 0 || !bytes.Equal(o.all(), p.a.mem[:n]) {
			t.Errorf("%d completions; %+v", len(got), c)
		}
	})
}

// Memory of the requester may be on demand, too.
func TestOwnPagesOnDemand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, func(p *control.QPPath) { p.Timeout = 18 })
		const pages = 20
		o, key := newOwner(p.a, pages)
		defer p.stopped()
		stop := make(chan struct{})
		done := o.storm(stop, rand.New(rand.NewPCG(9, 10)))
		const n = 60_000
		for i := range n {
			p.b.mem[i] = byte(i * 7)
		}
		sge := control.SGE{VA: 0x1000 + 500, Len: n, Key: key}
		p.a.post(p.qa, control.WR{Op: control.WRRead, Flags: control.WRSignaled, Key: p.b.mr, Remote: base,
			SGEs: []control.SGE{sge}})
		p.runPaged(o)
		p.a.post(p.qa, control.WR{Op: control.WRWrite, Flags: control.WRSignaled, Key: p.b.mr, Remote: base + 100_000,
			SGEs: []control.SGE{sge}})
		p.runPaged(o)
		close(stop)
		<-done
		got := p.a.poll()
		if len(got) != 2 || got[0].Status != 0 || got[1].Status != 0 {
			t.Fatalf("%+v", got)
		}
		c, moved := testkit.Must(p.a.PageCounts(key))(t), 2*n+testkit.Must(p.a.QPStatus(p.qa))(t).Out.AgainBytes
		if c.GPUBytes+c.HostBytes != moved {
			t.Errorf("%d bytes are counted, and not %d: what is only looked at is not", c.GPUBytes+c.HostBytes, moved)
		}
		if !bytes.Equal(o.all()[500:500+n], p.b.mem[:n]) || !bytes.Equal(p.b.mem[100_000:100_000+n], p.b.mem[:n]) {
			t.Error("wrong bytes")
		}
	})
}

// An MR on demand needs a mailbox: without one the driver could not invalidate pages.
func TestNoRegionWithoutAMailbox(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newEnd(t, 1)
		defer d.Close()
		m := control.MR{PD: d.pd, Kind: control.MROnDemand, Buffer: 7, VA: 0x1000, Len: onePage}
		_, err := d.AddMR(m)
		testkit.ErrorIs(t, err, syscall.ENODEV)
		testkit.OK(t, d.SetMailbox(control.Mailbox{}))
		d.box.gone.Store(true)
		_, err = d.AddMR(m)
		testkit.ErrorIs(t, err, syscall.ENODEV)
		d.box.gone.Store(false)
		_, err = d.AddMR(m)
		testkit.OK(t, err)
	})
}
