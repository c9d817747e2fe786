package virtq

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

const batch = 32

// loop is a ring whose driver only moves avail.idx.
type loop struct {
	avail header
	idx   uint16
	dev   *Device
}

func newLoop(b *testing.B, g *guest, base, bufs uint64, size int, n uint32, flags uint16) *loop {
	r := newRaw(g, Config{Size: uint16(size), Desc: base, Avail: base + 0x8000, Used: base + 0x10000, EventIdx: true})
	for i := range size {
		r.desc(i, desc{addr: bufs + uint64(i)*2048, len: n, flags: flags})
		r.entry(i, uint16(i))
	}
	h := testkit.Must(headerAt(g.ring(r.conf.Avail)))(b)
	return &loop{avail: h, dev: r.device(b)}
}

func (l *loop) publish(n uint16) { l.idx += n; l.avail.store(0, l.idx) }

// BenchmarkBothEnds sends chains from a driver to a device and back, without copying.
func BenchmarkBothEnds(b *testing.B) {
	for _, indirect := range []bool{false, true} {
		b.Run(fmt.Sprintf("indirect=%v", indirect), func(b *testing.B) {
			g := newGuest(b)
			dr, dev := g.ends(b, 256, indirect, true)
			out := []Buf{{bufIOVA, 66}, {seamIOVA, 1448}}
			var used [batch]Used
			var c Chain
			b.ReportAllocs()
			for i := 0; i < b.N; i += batch {
				for k := range uint32(batch) {
					testkit.OK(b, dr.Add(out, nil, k))
				}
				dr.Publish()
				tok := g.space.Enter()
				for range batch {
					if ok, err := dev.Peek(&c); !ok {
						b.Fatal(err)
					}
					dev.Commit(c.Head, 0)
				}
				g.space.Leave(tok)
				dev.Publish()
				if n, err := dr.Poll(used[:]); n != batch {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkForward copies packets from one ring to another, and for comparison without rings (memcpy).
func BenchmarkForward(b *testing.B) {
	for _, n := range []int{0, 64, 1448} {
		b.Run(fmt.Sprintf("%dB/ring", n), func(b *testing.B) {
			g := newGuest(b)
			tx := newLoop(b, g, ringIOVA, bufIOVA, 256, uint32(n), 0)
			rx := newLoop(b, g, ringIOVA+0x20000, seamIOVA, 256, uint32(n), flagWrite)
			var txc, rxc [batch]Chain
			copier := dma.NewCopier()
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for i := 0; i < b.N; i += batch {
				tx.publish(batch)
				rx.publish(batch)
				tok := g.space.Enter()
				if k, err := tx.dev.PeekBatch(txc[:]); k != batch {
					b.Fatal(err)
				}
				if k, err := rx.dev.PeekBatch(rxc[:]); k != batch {
					b.Fatal(err)
				}
				for k := range batch {
					m, err := copier.Copy(rxc[k].In, txc[k].Out)
					if err != nil || m != uint64(n) {
						b.Fatal(m, err)
					}
					rx.dev.Commit(rxc[k].Head, uint32(m))
				}
				for k := range batch {
					tx.dev.Commit(txc[k].Head, 0)
				}
				rx.dev.Publish()
				tx.dev.Publish()
				g.space.Leave(tok)
			}
		})
		if n == 0 {
			continue
		}
		b.Run(fmt.Sprintf("%dB/memcpy", n), func(b *testing.B) {
			g := newGuest(b)
			src, dst := g.buffer(bufIOVA, mib), g.buffer(seamIOVA, mib)
			b.SetBytes(int64(n))
			for i := 0; i < b.N; i++ {
				off := (i & 255) * 2048
				copy(dst[off:off+n], src[off:off+n])
			}
		})
	}
}
