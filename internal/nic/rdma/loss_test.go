package rdma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: nic/rdma: Whatever packet of a message is lost, its bytes arrive once, and the loss
// costs at most a window, a piece of a READ, and their answers.
func TestEachPacketLost(t *testing.T) {
	const size = 1 << 18
	for _, c := range []struct {
		op   control.WROp
		deep bool // an end sends all that it can before the other end sends
	}{{control.WRRead, false}, {control.WRWrite, false}, {control.WRSend, false}, {control.WRRead,
		true}, {control.WRWrite, true}} {
		op := c.op
		t.Run(fmt.Sprintf("operation %d, deep: %v", op, c.deep), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPair(t, func(p *control.QPPath) { p.MTU = 1024 })
				for i := range p.a.mem {
					p.a.mem[i], p.b.mem[i] = byte(i*11+i>>9), byte(i*17+i>>10)
				}
				src, dst := p.a, p.b
				if op == control.WRRead {
					src, dst = p.b, p.a
				}
				want := slices.Clone(dst.mem)
				copy(want[1000:1000+size], src.mem[500_000:])
				clean := slices.Clone(dst.mem)
				once := func(lose int) (frames int) {
					copy(dst.mem, clean)
					seen := 0
					p.frames = 0
					p.fate = func(*wire.Packet) (int, bool) {
						if seen++; seen == lose {
							return 0, false
						}
						return 1, false
					}
					w := control.WR{ID: 1, Op: op, Flags: control.WRSignaled, Key: p.b.mr, Remote: base + 1000,
						SGEs: []control.SGE{p.a.sge(500_000, size)}}
					switch op {
					case control.WRRead:
						w.Remote, w.SGEs = base+500_000, []control.SGE{p.a.sge(1000, size)}
					case control.WRSend:
						w.Key, w.Remote = 0, 0
						r := control.WR{ID: 2, Op: control.WRRecv, SGEs: []control.SGE{p.b.sge(1000, size)}}
						testkit.OK(t, p.b.PostRecv(control.Post{QPN: p.qb, WRs: []control.WR{r}}))
					}
					p.a.post(p.qa, w)
					for some := c.deep; some; {
						some = false
						for p.step(p.a, p.b) {
							some = true
						}
						for p.step(p.b, p.a) {
							some = true
						}
					}
					p.run()
					p.b.poll()
					if got := p.a.poll(); len(got) != 1 || got[0].Status != control.WCSuccess {
						t.Fatalf("without frame %d: completions %+v", lose, got)
					}
					if !bytes.Equal(dst.mem, want) {
						t.Fatalf("without frame %d: wrong bytes", lose)
					}
					return p.frames
				}
				all := once(0)
				most, sum := 0, 0
				for lose := 1; lose <= all; lose++ {
					n := once(lose) - all
					most, sum = max(most, n), sum+n
				}
				// Packets in flight are sent again, and each may be answered once more.
				if most > 2*(Window+readPiece) || sum == 0 {
					t.Errorf("a loss costs up to %d frames", most)
				}
				t.Logf("%d frames without loss; a loss costs %d on average, at most %d", all, sum/all, most)
			})
		})
	}
}

// Packet numbers wrap in a WRITE, a READ or a SEND, or between two of them, while packets are lost.
func TestNumbersWrap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for back := range uint32(14) {
			p := newPair(t, func(p *control.QPPath) {
				p.MTU, p.SendPSN, p.RecvPSN = 256, after(0, -back&psnMask), after(0, -back&psnMask)
			})
			for i := range 2000 {
				p.a.mem[i], p.b.mem[10_000+i] = byte(i*3+1), byte(i*5+1)
			}
			p.recvs([]control.SGE{p.b.sge(4000, 1200)})
			rnd := rand.New(rand.NewPCG(uint64(back), 5))
			p.fate = func(*wire.Packet) (int, bool) { return min(1, rnd.IntN(8)), false }
			p.a.post(p.qa, control.WR{ID: 1, Op: control.WRWrite, Key: p.b.mr, Remote: base, SGEs: []control.SGE{p.a.sge(0,
				1100)}},
				control.WR{ID: 2, Op: control.WRRead, Key: p.b.mr, Remote: base + 10_000, SGEs: []control.SGE{p.a.sge(3000, 1100)}},
				control.WR{ID: 3, Op: control.WRSend, Flags: control.WRSignaled, SGEs: []control.SGE{p.a.sge(0, 1100)}})
			p.run()
			if got := p.a.poll(); len(got) != 1 || got[0].ID != 3 || got[0].Status != control.WCSuccess {
				t.Fatalf("from %d before 0: completions %+v", back, got)
			}
			if !bytes.Equal(p.b.mem[:1100], p.a.mem[:1100]) || !bytes.Equal(p.b.mem[4000:5100], p.a.mem[:1100]) ||
				!bytes.Equal(p.a.mem[3000:4100], p.b.mem[10_000:11_100]) {
				t.Fatalf("from %d before 0: wrong bytes", back)
			}
		}
	})
}

// A WRITE with a fence waits for an earlier READ, and sends the bytes that it read; without a fence it does not wait.
func TestFence(t *testing.T) {
	for _, fence := range []uint8{0, control.WRFence} {
		bubble(t, func(t *testing.T) {
			p := newPair(t, nil)
			copy(p.b.mem[1000:], fill(5000))
			p.a.post(p.qa, control.WR{ID: 1, Op: control.WRRead, Key: p.b.mr, Remote: base + 1000,
				SGEs: []control.SGE{p.a.sge(0, 5000)}},
				control.WR{ID: 2, Op: control.WRWrite, Flags: control.WRSignaled | fence, Key: p.b.mr, Remote: base + 20_000,
					SGEs: []control.SGE{p.a.sge(0, 5000)}})
			for p.step(p.a, p.b) { // a sends all that it can without an answer
			}
			p.run()
			testkit.Equal(t, "completions", len(p.a.poll()), 1)
			if same := bytes.Equal(p.b.mem[20_000:25_000], fill(5000)); same != (fence != 0) {
				t.Errorf("fence %d: what was read is what is written: %v", fence, same)
			}
		})
	}
}

// Invariant: nic/rdma: Queue pairs take turns: a long message does not delay short ones, and a
// queue pair's answers do not delay its own requests.
func TestTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, func(p *control.QPPath) { p.MTU = 256 })
		const idle = 20
		var qs [idle]uint32
		for i := range qs {
			qs[i], _ = p.connect(func(p *control.QPPath) { p.MTU = 256 })
		}
		long := control.WR{ID: 999, Op: control.WRWrite, Key: p.b.mr, Remote: base,
			SGEs: []control.SGE{p.a.sge(0, memSize/2)}}
		p.a.post(p.qa, long)
		for range 40 {
			p.step(p.a, p.b)
			p.step(p.b, p.a)
		}
		for i, q := range qs {
			p.a.post(q, control.WR{ID: uint64(i), Op: control.WRWrite, Flags: control.WRSignaled, Key: p.b.mr,
				Remote: base + memSize - 8, SGEs: []control.SGE{p.a.sge(0, 8)}})
		}
		p.frames = 0
		done := 0
		for p.frames < 10_000 && done < idle {
			p.step(p.a, p.b)
			p.step(p.b, p.a)
			done += len(p.a.poll())
		}
		if p.frames > 4*(burst+idle) {
			t.Errorf("%d short messages beside a long one took %d frames", idle, p.frames)
		}
		testkit.Equal(t, "messages", done, idle)
		p.run()
	})
}

// A WRITE completes although the peer READs without a pause.
func TestAnswersDoNotHoldUpRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, func(p *control.QPPath) { p.MTU = 256 })
		for range 8 {
			p.b.post(p.qb, control.WR{ID: 5, Op: control.WRRead, Key: p.a.mr, Remote: base,
				SGEs: []control.SGE{p.b.sge(memSize/2, memSize/2)}})
		}
		for range 200 {
			p.step(p.a, p.b)
			p.step(p.b, p.a)
		}
		p.a.post(p.qa, control.WR{ID: 1, Op: control.WRWrite, Flags: control.WRSignaled, Key: p.b.mr, Remote: base,
			SGEs: []control.SGE{p.a.sge(0, 1000)}})
		p.frames = 0
		for len(p.a.poll()) == 0 {
			p.step(p.a, p.b)
			p.step(p.b, p.a)
			if p.frames > 1000 {
				t.Fatal("a WRITE of four packets waits for more than a thousand packets of answers")
			}
		}
		p.run()
	})
}

// Messages complete although the timeout is so short that packets are sent again that are not lost.
func TestTimeoutsThatAreTooShort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, func(p *control.QPPath) { p.MTU, p.Timeout = 256, 1 }) // 8 us
		copy(p.b.mem, fill(100_000))
		p.a.post(p.qa, control.WR{ID: 1, Op: control.WRRead, Flags: control.WRSignaled, Key: p.b.mr, Remote: base,
			SGEs: []control.SGE{p.a.sge(200_000, 100_000)}},
			control.WR{ID: 2, Op: control.WRWrite, Flags: control.WRSignaled, Key: p.b.mr, Remote: base + 500_000,
				SGEs: []control.SGE{p.a.sge(0, 100_000)}})
		n := 0
		for range 100_000 {
			some := p.step(p.a, p.b)
			some = p.step(p.b, p.a) || some
			if n++; n%37 == 0 || !some {
				time.Sleep(300 * time.Microsecond)
				synctest.Wait()
			}
			if !some && !p.waits() {
				break
			}
		}
		if got := p.a.poll(); len(got) != 2 || got[0].Status != control.WCSuccess || got[1].Status != control.WCSuccess {
			t.Fatalf("completions %+v", got)
		}
		if !bytes.Equal(p.a.mem[200_000:300_000], fill(100_000)) {
			t.Error("wrong bytes")
		}
	})
}
