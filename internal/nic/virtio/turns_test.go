package virtio_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

type busyGuest struct {
	*suiteGuest
	stop atomic.Bool
	wg   sync.WaitGroup
}

func (g *busyGuest) fill(f nictest.Frame) {
	bufs := g.layOut(&f, false)
	for ring := 1; ring < len(g.rings); ring += 2 {
		g.wg.Go(func() {
			var used [rawRing]virtq.Used
			for !g.stop.Load() {
				for g.rings[ring].Add(bufs, nil, 0) == nil {
				}
				g.publish(ring)
				if n, err := g.rings[ring].Poll(used[:]); err != nil {
					g.Error(err)
					return
				} else if n == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
}

// drain posts buffers of size bytes to receive queue 0. Until end is called, a goroutine passes each received frame to
// took and posts its buffer again; after each poll it sleeps for every, or briefly if every is 0 and nothing came.
func (g *busyGuest) drain(size int, every time.Duration, took func(frame []byte)) {
	var bufs []virtq.Buf
	for i := range int(g.ring) {
		addr, _ := g.Alloc(size)
		bufs = append(bufs, virtq.Buf{Addr: addr, Len: uint32(size)})
		g.OK(g.rings[0].Add(nil, bufs[i:], uint32(i)))
	}
	g.publish(0)
	g.wg.Go(func() {
		var used [rawRing]virtq.Used
		for !g.stop.Load() {
			n, err := g.rings[0].Poll(used[:])
			if err != nil {
				g.Error(err)
				return
			}
			for _, u := range used[:n] {
				took(g.At(bufs[u.Cookie].Addr)[12:u.Len])
				g.OK(g.rings[0].Add(nil, bufs[u.Cookie:][:1], u.Cookie))
			}
			g.publish(0)
			if every > 0 || n == 0 {
				time.Sleep(max(every, 10*time.Microsecond))
			}
		}
	})
}

func (g *busyGuest) end() {
	g.stop.Store(true)
	g.wg.Wait()
}

func busyGuests(b *testing.B, o rawOptions, pairs ...int) (gs []*busyGuest) {
	files, sw := nictest.Switch(b)
	for i, n := range pairs {
		o.pairs, o.mtu, o.noGPU = n, 1500, true
		g := &busyGuest{suiteGuest: newRawGuest(b, files, sw, i, o)}
		nictest.Hello(g)
		b.Cleanup(g.end)
		gs = append(gs, g)
	}
	return gs
}

// Invariant: nic: No sender stays asleep beside free buffers once other ports' turns have ended,
// even if a woken one does not use them.
func TestQueuesThatNeedMoreOrLessTakeTurns(t *testing.T) {
	files, sw := nictest.Switch(t)
	guest := func(i, pairs int) *suiteGuest {
		g := newRawGuest(t, files, sw, i, rawOptions{pairs: pairs, mtu: 1500, noGPU: true, patience: 2 * patient})
		nictest.Hello(g)
		return g
	}
	to, one, many := guest(0, 1), guest(1, 1), guest(2, 5)
	const size, frames = 256, 100 // bytes of a buffer; frames that each queue sends
	rnd := rand.New(rand.NewPCG(1, 2))
	need := 0
	for _, g := range []*suiteGuest{one, many} {
		for ring := 1; ring < len(g.rings); ring += 2 {
			for range frames {
				f := nictest.Make(to.mac, g.mac, nictest.Spec{UDP: true, Payload: 1 + rnd.IntN(1400)})
				g.OK(g.rings[ring].Add(g.layOut(&f, false), nil, 0))
				need += (to.hdr + len(f.Bytes()) + size - 1) / size
			}
			g.publish(ring)
		}
	}
	addr, _ := to.Alloc(size)
	buf := []virtq.Buf{{Addr: addr, Len: size}}
	taken := func(g *suiteGuest, ring int) int {
		var used [rawRing]virtq.Used
		return testkit.Must(g.rings[ring].Poll(used[:]))(t)
	}
	came := 0
	for posted := 0; posted < need; came += taken(to, 0) {
		for range 1 + rnd.IntN(8) {
			if posted == need || to.rings[0].Add(nil, buf, 0) != nil {
				break
			}
			posted++
		}
		to.publish(0)
		for range rnd.IntN(300) {
			runtime.Gosched()
		}
	}
	left := frames * 6
	testkit.Eventually(t, "all frames have come back", func() bool {
		left -= taken(one, 1)
		for ring := 1; ring < len(many.rings); ring += 2 {
			left -= taken(many, ring)
		}
		return left == 0
	})
	testkit.Equal(t, "buffers that are used", came+taken(to, 0), need)
}

// While a frame that needs four buffers waits, a frame of another queue needs only one.
//
// Invariant: nic: No sender stays asleep beside free buffers once other ports' turns have ended,
// even if a woken one does not use them.
func TestWhoNeedsFewerBuffersTakesThem(t *testing.T) {
	for _, ports := range []int{1, 2} {
		t.Run(fmt.Sprint(ports), func(t *testing.T) {
			files, sw := nictest.Switch(t)
			var gs []*suiteGuest
			for i := range 1 + ports {
				g := newRawGuest(t, files, sw, i, rawOptions{pairs: 2, mtu: 1500, noGPU: true, patience: 2 * patient})
				nictest.Hello(g)
				gs = append(gs, g)
			}
			to, long, short := gs[0], gs[1], gs[ports]
			const size = 256
			waits := func(g *suiteGuest, pair, payload int) {
				busy := to.Port().Link().Counters().Busy
				f := nictest.Make(to.mac, g.mac, nictest.Spec{UDP: true, Payload: payload})
				g.OK(g.rings[2*pair+1].Add(g.layOut(&f, false), nil, 0))
				g.publish(2*pair + 1)
				testkit.Eventually(t, "it waits", func() bool {
					return to.Port().Link().Counters().Busy > busy && g.dev.Waits(pair) > 0
				})
			}
			addr, _ := to.Alloc(size)
			post := func(n int) {
				for range n {
					to.OK(to.rings[0].Add(nil, []virtq.Buf{{Addr: addr, Len: size}}, 0))
				}
				to.publish(0)
			}
			buffers := func(what string, want int) {
				t.Helper()
				var used [rawRing]virtq.Used
				testkit.Eventually(t, what, func() bool {
					want -= testkit.Must(to.rings[0].Poll(used[:]))(t)
					return want <= 0
				})
				testkit.Equal(t, what+", buffers too many", -want, 0)
			}
			waits(long, 0, 900)
			waits(short, 1, 100)
			post(2)
			buffers("the short frame", 1)
			post(3)
			buffers("the long frame", 4)
		})
	}
}

// BenchmarkReceiverShare measures the share of a receiver's frames that a guest with one queue sends beside a guest
// with as many queues or more.
func BenchmarkReceiverShare(b *testing.B) {
	for _, queues := range []int{1, 3, 16} {
		b.Run(fmt.Sprint(queues), func(b *testing.B) {
			gs := busyGuests(b, rawOptions{ring: 64}, 1, 1, queues)
			to, one, many := gs[0], gs[1], gs[2]
			var frames [3]atomic.Int64
			to.drain(2048, 200*time.Microsecond, func(f []byte) { frames[f[11]-1].Add(1) })
			one.fill(tcp(one.suiteGuest, to.suiteGuest, 64))
			many.fill(tcp(many.suiteGuest, to.suiteGuest, 64))
			testkit.Eventually(b, "both send", func() bool { return frames[1].Load() > 0 && frames[2].Load() > 0 })
			before := [2]int64{frames[1].Load(), frames[2].Load()}
			start := time.Now()
			for b.Loop() {
				time.Sleep(10 * time.Millisecond)
			}
			n, m := float64(frames[1].Load()-before[0]), float64(frames[2].Load()-before[1])
			b.ReportMetric(n/(n+m), "share")
			b.ReportMetric((n+m)/time.Since(start).Seconds(), "frames/s")
			for _, g := range gs {
				g.end()
			}
		})
	}
}

// BenchmarkPollerShare measures how many frames a second a guest sends one by one, alone and beside a guest that fills
// its queues for another receiver.
func BenchmarkPollerShare(b *testing.B) {
	for _, threads := range []int{0, 1} {
		for _, queues := range []int{1, 16} {
			b.Run(fmt.Sprintf("pollers=%d/queues=%d", threads, queues), func(b *testing.B) {
				var pollers *nic.Pollers
				if threads > 0 {
					pollers = newPollers(b, threads, false)
				}
				gs := busyGuests(b, rawOptions{pollers: pollers}, 1, 1, 1, queues)
				to, one, sink, many := gs[0], gs[1], gs[2], gs[3]
				to.Post(0, 4)
				var moved atomic.Int64
				sink.drain(1<<16+1024, 0, func(f []byte) { moved.Add(int64(len(f))) })
				f := tcp(one.suiteGuest, to.suiteGuest, 64)
				bufs := one.layOut(&f, false)
				var used [rawRing]virtq.Used
				perSecond := func(d time.Duration) float64 {
					n, start := 0, time.Now()
					for ; time.Since(start) < d; n++ {
						one.OK(one.rings[1].Add(bufs, nil, 0))
						one.publish(1)
						one.poll(1, used[:])
						for _, u := range used[:to.poll(0, used[:])] {
							to.repost(0, u)
						}
						to.publish(0)
					}
					return float64(n) / time.Since(start).Seconds()
				}
				var alone, beside, bytes float64
				super := tcp(many.suiteGuest, sink.suiteGuest, 60_000)
				super.GSO, super.MSS = splitter.GSOTCPv4, 1460
				for b.Loop() {
					many.stop.Store(false)
					alone += perSecond(200 * time.Millisecond)
					many.fill(super)
					testkit.Eventually(b, "super-packets come", func() bool { return moved.Swap(0) > 0 })
					beside += perSecond(200 * time.Millisecond)
					bytes += float64(moved.Swap(0)) / 0.2
					many.end()
				}
				b.ReportMetric(beside/alone, "share")
				b.ReportMetric(alone/float64(b.N), "alone/s")
				b.ReportMetric(bytes/float64(b.N)/1e6, "MB/s")
				for _, g := range gs {
					g.end()
				}
			})
		}
	}
}
