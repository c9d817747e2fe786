package virtio_test

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/virtq"
)

// tiny runs a test with small rings (virtio 1.3, 2.7: any power of two), with and without some features.
func tiny(t *testing.T, run func(t *testing.T, o rawOptions)) {
	for _, size := range []uint16{1, 2, 4} {
		for _, lacks := range []uint64{0, fEventIdx, fIndirect, fMrg, fVersion1 | fMrg} {
			t.Run(fmt.Sprintf("ring of %d without %x", size, lacks), func(t *testing.T) {
				run(t, rawOptions{pairs: 2, mtu: 1500, p2p: true, ring: size, drop: lacks, patience: patient, wait: soon})
			})
		}
	}
}

func TestTinyRings(t *testing.T) {
	tiny(t, func(t *testing.T, o rawOptions) {
		w := newWorldWith(t, o)
		for i := range 3 * int(o.ring) {
			f, back := tcp(w.A, w.B, 10+i), tcp(w.B, w.A, 20+i)
			w.B.Post(0, 1)
			w.A.sendWhole(f)
			nictest.Arrives(t, w.B, 0, &f)
			w.A.Post(0, 1)
			w.B.sendWhole(back)
			nictest.Arrives(t, w.A, 0, &back)
		}
		for i := range uint32(5) {
			w.A.ask(1+i, 1)
			w.A.Post(0, 1)
			testkit.Equal(t, "answer", w.A.answer().Seq, 1+i)
		}
		testkit.Equal(t, "errors", len(w.A.dev.Errors())+len(w.B.dev.Errors()), 0)
	})
}

func (g *suiteGuest) sendWhole(f nictest.Frame) {
	g.Helper()
	f.Header, f.Payload = f.Bytes(), nil
	g.Send(0, f)
}

func TestTinyRingsWake(t *testing.T) {
	tiny(t, func(t *testing.T, o rawOptions) {
		w := newWorldWith(t, o)
		const n = 50
		sent := 0
		for i := range n {
			for ; sent < n && sent <= i+int(o.ring); sent++ {
				for w.A.flight[0] == int(o.ring) {
					var used [4]virtq.Used
					w.A.flight[0] -= w.A.poll(1, used[:])
					if w.A.flight[0] == int(o.ring) {
						break
					}
				}
				f := tcp(w.A, w.B, 100+sent)
				f.Header, f.Payload = f.Bytes(), nil
				w.A.Queue(0, f)
				if w.A.flight[0] == int(o.ring) {
					sent++
					break
				}
			}
			w.B.Post(0, 1)
			f := tcp(w.A, w.B, 100+i)
			nictest.Arrives(t, w.B, 0, &f)
		}
		w.A.Sent(0)
	})
}

// Linux makes indirect tables longer than the ring, though virtio 1.3, 2.7.5.3.1 forbids it, and QEMU reads them.
func TestTinyRingsReadTables(t *testing.T) {
	for _, size := range []uint16{1, 2, 4} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 2, mtu: 9000, p2p: true, patience: patient, wait: soon})
			nictest.SplitTo(t, w.B, 1, 2000)
			tx, rx := w.A.handRing(1), w.B.handRing(2)
			tx.setup.Size, rx.setup.Size = size, size
			tx.restart()
			rx.restart()
			for round := range uint16(3 * size) {
				f := superFrame(w.A, w.B, 65000, 8946)
				bufs := w.A.layOut(&f, false)
				payload := bufs[1]
				bufs = bufs[:1]
				for off := uint32(0); off < payload.Len; off += 4096 {
					bufs = append(bufs, virtq.Buf{Addr: payload.Addr + uint64(off), Len: min(4096, payload.Len-off)})
				}
				pages := []virtq.Buf{{Addr: w.B.Put(make([]byte, 268)), Len: 268}}
				for range 16 {
					pages = append(pages, virtq.Buf{Addr: w.B.PayloadPage(), Len: nictest.PayloadBuf})
				}
				rx.table(round%size, vringWrite, pages)
				tx.table(round%size, 0, bufs)
				testkit.Eventually(t, "a frame that is sent", func() bool {
					return tx.usedIdx() == round+1 || len(w.A.dev.Errors())+len(w.B.dev.Errors()) > 0
				})
				testkit.Equal(t, "chains used", rx.usedIdx(), round+1)
				got := []byte(nil)
				for _, p := range pages[1:] {
					got = append(got, w.B.At(p.Addr)[:p.Len]...)
				}
				if string(got[:65000]) != string(f.Payload) {
					t.Fatalf("round %d: other bytes", round)
				}
			}
		})
	}
}

func (r *handRing) table(head, flags uint16, bufs []virtq.Buf) {
	addr, table := r.g.Alloc(16 * len(bufs))
	for i, b := range bufs {
		f := flags
		if i < len(bufs)-1 {
			f |= vringNext
		}
		put(table, i, b, f, uint16(i+1))
	}
	put(r.desc, int(head), virtq.Buf{Addr: addr, Len: uint32(len(table))}, vringIndirect, 0)
	le.PutUint16(r.avail[4+2*int(r.entries%r.setup.Size):], head)
	r.entries++
	r.publish()
}

func TestTinySplitRings(t *testing.T) {
	for _, size := range []uint16{2, 4} {
		for _, lacks := range []uint64{fIndirect, fIndirect | fEventIdx, fIndirect | fMrg} {
			t.Run(fmt.Sprintf("ring of %d without %x", size, lacks), func(t *testing.T) {
				w := newWorldWith(t, rawOptions{pairs: 2, mtu: 9000, p2p: true, ring: size, drop: lacks, wait: soon})
				nictest.SplitTo(t, w.B, 1, 2000)
				for i := range 10 {
					w.B.Post(1, int(size/2))
					for range size / 2 {
						f := tcp(w.A, w.B, 1000+i)
						w.A.sendWhole(f)
						if got := nictest.Arrives(t, w.B, 1, &f); !got.Split {
							t.Error("a frame that is not split")
						}
					}
				}
				w.B.OK(w.B.Port().SetSplit(control.Split{Queue: 1}))
			})
		}
	}
}

func TestTinyRingsGoOn(t *testing.T) {
	tiny(t, func(t *testing.T, o rawOptions) {
		w := newWorldWith(t, o)
		for i := range 10 {
			for r, base := range w.B.bases() {
				w.B.setup(r, base)
			}
			f := tcp(w.A, w.B, 10+i)
			one := f
			one.Header, one.Payload = f.Bytes(), nil
			busy := w.B.Port().Link().Counters().Busy
			w.A.Queue(0, one)
			testkit.Eventually(t, "a frame that waits", func() bool { return w.B.Port().Link().Counters().Busy > busy })
			base := w.A.base(1)
			w.B.Post(0, 1)
			w.A.setup(1, base)
			w.A.Sent(0)
			nictest.Arrives(t, w.B, 0, &f)
			f = tcp(w.B, w.A, 10+i)
			w.A.Post(0, 1)
			w.B.sendWhole(f)
			nictest.Arrives(t, w.A, 0, &f)
		}
	})
}
