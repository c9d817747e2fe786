package rdma

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// running is a pair with a goroutine for each end, which moves the end's frames like a worker.
type running struct {
	*pair
	stop atomic.Bool
	wg   sync.WaitGroup
}

func newRunning(t testing.TB) *running {
	r := &running{pair: newPair(t, func(p *control.QPPath) { p.Timeout, p.Retries = 8, 7 })}
	for i, d := range []*end{r.a, r.b} {
		to := []*end{r.b, r.a}[i]
		r.wg.Go(func() {
			for n := 0; !r.stop.Load(); n++ {
				if !r.move(d, to) {
					time.Sleep(50 * time.Microsecond)
				}
			}
		})
	}
	t.Cleanup(r.end)
	return r
}

func (r *running) end() {
	r.stop.Store(true)
	r.wg.Wait()
}

// move is pair.step without fate, late and frames, which only one goroutine may use.
func (r *running) move(from, to *end) bool {
	from.TellAll()
	var pkt wire.Packet
	token := from.space.Enter()
	defer from.space.Leave(token)
	if !from.Next(0, &pkt) {
		return false
	}
	r.give(to, &pkt)
	return true
}

// Invariant: nic/rdma: Whatever concurrent commands delete: memory of an MR is not touched after
// DelMR or Reset has returned, nor by a queue pair after its DelQP, and the counts of all bounds
// stay correct.
func TestCommandsInTheMiddle(t *testing.T) {
	r := newRunning(t)
	const all = control.AccessLocalWrite | control.AccessRemoteWrite | control.AccessRemoteRead
	var rounds, done atomic.Int64
	var users sync.WaitGroup
	for u := range uint64(4) {
		users.Go(func() {
			rnd := rand.New(rand.NewPCG(u, 1))
			start := u * (memSize / 4)
			part := func(d *end) []byte { return d.mem[start : start+memSize/4] }
			for n := range 50 {
				rounds.Add(1)
				done.Add(r.round(t, rnd, n == 0, start, memSize/4, all))
				for _, d := range []*end{r.a, r.b} {
					m := part(d)
					for i := range m {
						m[i] = 0xa5
					}
					for i := range m {
						if m[i] != 0xa5 {
							t.Errorf("memory is written that no MR has")
							return
						}
					}
				}
			}
		})
	}
	users.Wait()
	t.Logf("%d rounds, %d completions", rounds.Load(), done.Load())
	if done.Load() == 0 {
		t.Error("nothing was ever done")
	}
	r.end()
	for _, d := range []*end{r.a, r.b} {
		d.mu.Lock()
		if d.mrs.count != 1 || d.qps.count != 1 || len(d.cqs) != 1 || len(d.pds) != 1 || d.ranges != 1 ||
			d.taken != MaxWRs+64+64 || d.active.Load() != 1 {
			t.Errorf("left: %d MRs, %d queue pairs, %d CQs, %d PDs, %d ranges, %d places", d.mrs.count, d.qps.count, len(d.cqs),
				len(d.pds), d.ranges, d.taken)
		}
		for _, c := range d.cqs {
			if c.reserved != c.n {
				t.Errorf("a completion queue has %d places taken, and %d completions", c.reserved, c.n)
			}
		}
		d.mu.Unlock()
	}
}

// round makes queue pairs and memory regions, posts work, and deletes them in either order. It returns how many
// WRITEs, READs and SENDs succeeded.
func (r *running) round(t *testing.T, rnd *rand.Rand, wait bool, start, n uint64, access uint8) (done int64) {
	var keys, qps, cqs, pds [2]uint32
	ends := []*end{r.a, r.b}
	for i, d := range ends {
		pds[i] = testkit.Must(d.AddPD())(t)
		cqs[i] = testkit.Must(d.AddCQ(64))(t)
		keys[i] = testkit.Must(d.AddMR(control.MR{PD: pds[i], Kind: control.MRGuest, Access: access, VA: base, Len: n,
			Ranges: []control.MRRange{{IOVA: start, Len: n}}}))(t)
		qps[i] = testkit.Must(d.AddQP(control.QP{PD: pds[i], SendCQ: cqs[i], RecvCQ: r.end2cq(i), MaxSend: 16,
			MaxRecv: 16}))(t)
	}
	for i, d := range ends {
		path := control.QPPath{QPN: qps[i], RemoteQPN: qps[1-i], Local: d.ip, Remote: ends[1-i].ip, MAC: ends[1-i].c.MAC,
			MTU: 1024, Timeout: 8, Retries: 3, RNR: 2, RNRTimer: 1, Reads: 4, ReadDepth: 4}
		if wait { // on a busy machine the queue pairs must not give up before a completion
			path.Timeout, path.Retries, path.RNR = 20, 7, 7
		}
		testkit.OK(t, d.ConnectQP(path))
	}
	post := func(i int) {
		d := ends[i]
		sge := control.SGE{VA: base, Len: 8000, Key: keys[i]}
		for _, op := range []control.WROp{control.WRWrite, control.WRRead, control.WRSend} {
			w := control.WR{ID: 1, Op: op, Flags: control.WRSignaled, SGEs: []control.SGE{sge}}
			if op != control.WRSend {
				w.Key, w.Remote = keys[1-i], base+n/2
			}
			if err := d.PostSend(control.Post{QPN: qps[i], WRs: []control.WR{w}}); err != nil && !errors.Is(err,
				syscall.ENOENT) && !errors.Is(err, syscall.ENOSPC) {
				t.Error(err)
			}
		}
		rc := control.WR{Op: control.WRRecv, SGEs: []control.SGE{sge}}
		if err := d.PostRecv(control.Post{QPN: qps[i], WRs: []control.WR{rc}}); err != nil && !errors.Is(err,
			syscall.ENOENT) && !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	}
	post(0)
	post(1)
	var late sync.WaitGroup
	late.Go(func() { // posts while the queue pairs are deleted
		for range 3 {
			post(0)
			post(1)
		}
	})
	time.Sleep(time.Duration(rnd.IntN(500)) * time.Microsecond)
	if wait {
		testkit.Eventually(t, "a completion", func() bool {
			s, err := r.a.QPStatus(qps[0])
			return err != nil || s.Out.Messages > 0
		})
	}
	for i, d := range ends {
		first := rnd.IntN(2) == 0
		if first {
			testkit.OK(t, d.DelMR(keys[i]))
		}
		testkit.OK(t, d.DelQP(qps[i]))
		if !first {
			testkit.OK(t, d.DelMR(keys[i]))
		}
	}
	late.Wait()
	for i, d := range ends {
		for {
			c := testkit.Must(d.PollCQ(control.Poll{CQ: cqs[i], Max: 100}))(t)
			for _, w := range c.WCs {
				if w.Status == control.WCSuccess {
					done++
				}
			}
			if len(c.WCs) == 0 {
				break
			}
		}
		d.mu.Lock()
		if c := d.cqs[cqs[i]]; c.reserved != 0 {
			t.Errorf("%d places of a completion queue are taken by queue pairs that are no more", c.reserved)
		}
		d.mu.Unlock()
		testkit.OK(t, d.DelCQ(cqs[i]))
		testkit.OK(t, d.DelPD(pds[i]))
	}
	return done
}

// end2cq returns an end's completion queue, which all rounds share.
func (r *running) end2cq(i int) uint32 { return []*end{r.a, r.b}[i].cq }

// After a Reset while other goroutines post, no frame writes memory, and no MR or queue pair is left.
func TestResetInTheMiddle(t *testing.T) {
	r := newRunning(t)
	for range 20 {
		var users sync.WaitGroup
		post := func(d *end, q, key, rkey uint32) {
			for {
				err := d.PostSend(control.Post{QPN: q, WRs: []control.WR{{Op: control.WRWrite, Key: rkey, Remote: base,
					SGEs: []control.SGE{{VA: base, Len: 10_000, Key: key}}}}})
				if errors.Is(err, syscall.ENOENT) {
					return
				}
			}
		}
		users.Go(func() { post(r.a, r.qa, r.a.mr, r.b.mr) })
		users.Go(func() { post(r.b, r.qb, r.b.mr, r.a.mr) })
		time.Sleep(300 * time.Microsecond)
		r.a.Reset()
		for i := range r.a.mem {
			r.a.mem[i] = 1
		}
		r.b.Reset()
		for i := range r.b.mem {
			r.b.mem[i] = 2
		}
		users.Wait()
		if r.a.Active() || r.b.Active() {
			t.Fatal("active")
		}
		for i := range r.a.mem {
			if r.a.mem[i] != 1 || r.b.mem[i] != 2 {
				t.Fatal("memory is written after Reset")
			}
		}
		for _, d := range []*end{r.a, r.b} {
			if d.taken != 0 || d.ranges != 0 || d.mrs.count != 0 || d.qps.count != 0 {
				t.Fatalf("left: %d %d %d %d", d.taken, d.ranges, d.mrs.count, d.qps.count)
			}
			d.pd = testkit.Must(d.AddPD())(t)
			d.cq = testkit.Must(d.AddCQ(MaxWRs))(t)
			d.mr = d.guest(control.AccessLocalWrite|control.AccessRemoteWrite|control.AccessRemoteRead, base, 0, memSize)
		}
		r.qa, r.qb = r.connect(func(p *control.QPPath) { p.Timeout = 8 })
	}
}

// DelQP, DelMR and Reset wait for a goroutine that is inside the epoch of the Engine's users.
func TestDeletionWaitsForThoseInside(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for name, del := range map[string]func(p *pair) error{
			"DelQP": func(p *pair) error { return p.a.DelQP(p.qa) },
			"DelMR": func(p *pair) error { return p.a.DelMR(p.a.mr) },
			"Reset": func(p *pair) error { p.a.Reset(); return nil },
		} {
			p := newPair(t, nil)
			token := p.a.users.Enter()
			done := make(chan error, 1)
			go func() { done <- del(p) }()
			synctest.Wait()
			select {
			case <-done:
				t.Errorf("%s did not wait", name)
			default:
			}
			p.a.users.Leave(token)
			testkit.NoError(t, <-done)
		}
	})
}

// A post to a deleted queue pair fails, and takes no slots, which would never be freed.
func TestPostToAQueuePairThatIsNoMore(t *testing.T) {
	p := newPair(t, nil)
	q := p.a.qpOf(p.qa)
	testkit.OK(t, p.a.DelQP(p.qa))
	p.a.qps.set(p.qa, q) // as if a goroutine had found the queue pair before DelQP
	testkit.ErrorIs(t, p.a.PostSend(control.Post{QPN: p.qa, WRs: []control.WR{{Op: control.WRWrite}}}), syscall.ENOENT)
	testkit.ErrorIs(t, p.a.PostRecv(control.Post{QPN: p.qa, WRs: []control.WR{{Op: control.WRRecv}}}), syscall.ENOENT)
	testkit.Equal(t, "places that are taken", p.a.cqs[p.a.cq].reserved, 0)
	p.a.qps.del(p.qa)
}
