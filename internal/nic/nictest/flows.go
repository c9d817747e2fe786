package nictest

import (
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: nic: The flow table counts each packet once, by flow, direction and queue, with the
// memory of its payload, the matching rule, and the reason if it was dropped.
func flowsCounted(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	rules, err := b.Port().Flows()
	must(t, err)
	b.Post(1, 8)
	b.Post(0, 8)
	one := Make(b.MAC(), a.MAC(), Spec{Seq: 1000, Payload: 512})
	for _, s := range []Spec{{Seq: 1000, Payload: 512}, {Seq: 1512, Payload: 512}, {Seq: 1300, Payload: 512}} {
		a.SendGPU(0, Make(b.MAC(), a.MAC(), s))
	}
	a.Send(0, Make(b.MAC(), a.MAC(), Spec{Port: 2001, Payload: 77}))
	a.Send(0, Make(a.MAC(), a.MAC(), Spec{Port: 2002, Payload: 10}))
	type key struct {
		port  uint16
		queue int
	}
	read := func(p *nic.Port, tx bool) map[key]nic.QueueFlows {
		m := map[key]nic.QueueFlows{}
		for _, q := range p.FlowAccount() {
			if q.Tx != tx {
				continue
			}
			for i := range q.Rows {
				k := key{q.Rows[i].Flow.DstPort, q.Queue}
				one := q
				one.Rows = q.Rows[i : i+1]
				m[k] = one
			}
		}
		return m
	}
	sent, came := read(a.Port(), true), read(b.Port(), false)
	for name, m := range map[string]map[key]nic.QueueFlows{"sent": sent, "received": came} {
		k := key{2000, 0}
		if name == "received" {
			k.queue = 1
		}
		q, ok := m[k]
		if !ok {
			t.Fatalf("%s: nothing of port 2000: %+v", name, m)
		}
		r := q.Rows[0]
		if r.Packets != 3 || r.Device != 3*512 || r.Host != 0 || r.Header != 3*uint64(len(one.Header)) ||
			r.Again != 512 || r.Top != 2024 || !r.Begun || r.Dropped() != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	r := came[key{2000, 1}].Rows[0]
	if r.Rule == 0 || r.Rule != rules[0].ID && r.Rule != rules[1].ID {
		t.Errorf("rule %d of %+v", r.Rule, rules)
	}
	if r := came[key{2001, 0}].Rows[0]; r.Host != 77 || r.Device != 0 || r.Rule != 0 || r.Packets != 1 {
		t.Errorf("what is not steered: %+v", r)
	}
	lost := sent[key{2002, 0}].Rows[0]
	testkit.Equal(t, "drops of what goes to its own port", lost.Drops[wire.DropSamePort], 1)
	testkit.Equal(t, "packets of it that were sent", lost.Packets, 0)
	testkit.Equal(t, "bytes lost", lost.Lost, 10)
}

// received returns a receive queue's counts of the first flow that it has with this destination port, or zeros if there
// is none.
func received(p *nic.Port, queue int, port uint16) (none flows.Counts) {
	p.QueueCounters(queue) // waits until the sender that fills the queue has left it
	for _, q := range p.FlowAccount() {
		for _, r := range q.Rows {
			if !q.Tx && q.Queue == queue && r.Flow.DstPort == port {
				return r.Counts
			}
		}
	}
	return none
}

// countedMerged checks a queue's counts of the flow to TCP port 2000, whose frames were merged to one packet.
func countedMerged(t *testing.T, p *nic.Port, queue int, header []byte, frames, payload uint64, split bool, o Options) {
	t.Helper()
	want := flows.Counts{Packets: 1, Segments: frames, Header: uint64(len(header))}
	switch {
	case !split:
		want.Host = payload
	case o.NoP2P:
		want.Host, want.Bounced = payload, payload
	default:
		want.Device = payload
	}
	testkit.Equal(t, "account of the flow", received(p, queue, 2000), want)
}

// Invariant: nic: Posted buffers can be inspected, without effect on the frames that use them.
func postedShown(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	b.Post(1, 8)
	look := func() (buffers int, gpu uint64) {
		b.Port().Posted(1, func(segs []dma.Segment) {
			buffers++
			for _, s := range segs {
				if s.GPU() >= 0 {
					gpu += uint64(s.Len)
				}
			}
		})
		return buffers, gpu
	}
	n, gpu := look()
	if n != 8 || gpu != 8*PayloadBuf {
		t.Fatalf("%d buffers with %d bytes of GPU memory, not 8 with %d", n, gpu, 8*PayloadBuf)
	}
	for left := 7; left >= 5; left-- {
		f := Make(b.MAC(), a.MAC(), Spec{Payload: 300})
		got := arrives(t, a, b, 1, f)
		same(t, &got, &f)
		n, _ := look()
		testkit.Equal(t, "buffers that are left", n, left)
	}
}
