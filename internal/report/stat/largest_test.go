package stat

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// fullAccounts returns the accounts of that many ports, each with all flows.DefaultRows rows in use. Flow n, from 1,
// has n bytes of payload, counted at one port as sent and as received.
func fullAccounts(ports int) (list []portFlows) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for p := range ports {
		a := portFlows{name: fmt.Sprint("guest", p)}
		for _, tx := range []bool{false, true} {
			q := nic.QueueFlows{Tx: tx}
			for i := range flows.DefaultRows / 2 {
				n := p*flows.DefaultRows/2 + i + 1
				f := splitter.Flow{Proto: splitter.ProtoTCP, SrcPort: uint16(n), DstPort: 7}
				binary.BigEndian.PutUint32(f.Src[:], uint32(n))
				r := flows.Row{Flow: f, Begun: tx, Top: 1000}
				r.Packets, r.Host, r.Drops = 1, uint64(n), [flows.NumReasons]uint32{1: 3}
				q.Rows = append(q.Rows, r)
			}
			rnd.Shuffle(len(q.Rows), func(i, j int) { q.Rows[i], q.Rows[j] = q.Rows[j], q.Rows[i] })
			a.rows = append(a.rows, q)
		}
		list = append(list, a)
	}
	return list
}

// Invariant: vnic stat: A page has the 200 flows that moved most, with the same values as in the
// complete list, and the number of the others.
func TestLargestFlows(t *testing.T) {
	acks := func() []portFlows { // full accounts, and a row of the largest flow's reverse flow with an acknowledgment
		list := fullAccounts(3)
		r := flows.Row{Flow: reverse(list[2].rows[0].Rows[0].Flow), Peer: flows.Peer{Known: true, Ack: 900, Window: 5}}
		for _, x := range list[2].rows[1].Rows {
			if x.Host == 3*flows.DefaultRows/2 {
				r.Flow = reverse(x.Flow)
			}
		}
		list[0].rows[0].Rows = append(list[0].rows[0].Rows, r)
		return list
	}
	all, some := account(acks(), nil, 0), account(acks(), nil, shownFlows)
	testkit.Equal(t, "flows", len(some.List), shownFlows)
	testkit.Equal(t, "others", some.More, len(all.List)-shownFlows)
	for i := range some.List {
		testkit.Equal(t, "flow", some.List[i].From, all.List[i].From)
		testkit.Equal(t, "its receive side", fmt.Sprintf("%+v", some.List[i].RX), fmt.Sprintf("%+v", all.List[i].RX))
	}
	if f := &some.List[0].TX[0]; f.Window == nil || *f.Window != 5 || f.InFlight != 100 {
		t.Errorf("the values from the other direction are missing: %+v", f)
	}
	few := account(fullAccounts(1)[:1], nil, 1<<20)
	testkit.Equal(t, "others of few", few.More, 0)
	testkit.Equal(t, "few", len(few.List), flows.DefaultRows/2)
}

func BenchmarkFullAccounts(b *testing.B) {
	for _, ports := range []int{2, 8, 64} {
		for name, most := range map[string]int{"all": 0, "largest": shownFlows} {
			b.Run(fmt.Sprintf("%d ports, %s", ports, name), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					list := fullAccounts(ports)
					b.StartTimer()
					account(list, nil, most)
				}
			})
		}
	}
}
