package rdma

import (
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: nic/rdma: Neither end allocates memory for a packet of a WRITE, READ or SEND, unless
// the packet waits for a page.
func TestPacketsDoNotAllocate(t *testing.T) {
	for name, op := range map[string]control.WROp{"WRITE": control.WRWrite, "READ": control.WRRead,
		"SEND": control.WRSend} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, func(p *control.QPPath) { p.Timeout = 31 })
			c := dma.NewCopier()
			var pkt wire.Packet
			frames := 0
			step := func(from, to *end) bool {
				from.TellAll()
				token := from.space.Enter()
				defer from.space.Leave(token)
				if !from.Next(0, &pkt) {
					return false
				}
				frames++
				in := to.space.Enter()
				defer to.space.Leave(in)
				if taken, _, _ := to.Receive(c, &pkt); !taken {
					t.Error("a packet is not taken")
				}
				return true
			}
			post := func() {
				w := control.WR{ID: 1, Op: op, Flags: control.WRSignaled, SGEs: []control.SGE{p.a.sge(0, memSize/2)}}
				if op == control.WRSend {
					r := control.WR{ID: 1, Op: control.WRRecv, SGEs: []control.SGE{p.b.sge(0, memSize/2)}}
					testkit.OK(t, p.b.PostRecv(control.Post{QPN: p.qb, WRs: []control.WR{r}}))
				} else {
					w.Key, w.Remote = p.b.mr, base
				}
				p.a.post(p.qa, w)
			}
			turn := func() {
				for range 16 {
					step(p.a, p.b)
					step(p.b, p.a)
				}
			}
			post()
			for range 4 {
				turn()
			}
			before := frames
			if n := testing.AllocsPerRun(10, turn); n != 0 {
				t.Errorf("%v allocations for 16 packets and their answers", n)
			}
			if frames < before+10*16 {
				t.Fatalf("only %d frames were looked at", frames-before)
			}
		})
	}
}
