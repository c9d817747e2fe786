package rdma

import (
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

func TestParkedPacketsAreCountedAtTheirRegion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, func(p *control.QPPath) { p.Timeout = 18 })
		o, key := newOwner(p.b, 8)
		defer p.stopped()
		o.mute = true
		const n = 3000 // in 3 packets
		page := func(i uint64) control.SGE { return control.SGE{VA: 0x1000 + i*onePage, Len: n, Key: key} }
		p.recvs([]control.SGE{p.b.sge(0, n)}, []control.SGE{p.b.sge(n, 10), page(0)}, []control.SGE{page(1)})
		plain := control.WR{Op: control.WRWrite, Key: p.b.mr, Remote: base, SGEs: []control.SGE{p.a.sge(0, n)}}
		send := control.WR{Op: control.WRSend, SGEs: plain.SGEs}
		step := func(parked, bytes uint64, wrs ...control.WR) {
			t.Helper()
			p.a.post(p.qa, wrs...)
			for range 100 {
				p.step(p.a, p.b)
				p.step(p.b, p.a)
			}
			c := testkit.Must(p.b.PageCounts(key))(t)
			testkit.Equal(t, "parked packets", c.Parked, parked)
			testkit.Equal(t, "their bytes", c.ParkedBytes, bytes)
			o.mute = false
			p.runPaged(o)
			o.mute = true
		}
		step(0, 0, plain, send)
		step(6, 2*n, send, send)
		step(6, 2*n, plain)
		// The page of the WRITE's second and third packet is not there.
		step(8, 3*n-1024, control.WR{Op: control.WRWrite, Key: key, Remote: 0x1000 + 2*onePage - 1024, SGEs: plain.SGEs})
	})
}
