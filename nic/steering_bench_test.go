package nic_test

import (
	"net/netip"
	"testing"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/wire"
)

// commandPort makes a port whose queues never see a packet.
func commandPort(t testing.TB) *nic.Port {
	t.Helper()
	c := nic.Config{Name: "a", MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500, QueuePairs: 4, HeaderLimit: 256}
	p, err := nic.NewPort(c, dma.NewSpace("a", dma.NewFiles()), make([]nic.RxQueue, 4), func() wire.Limits { return wire.Limits{} })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ruleOf(i int) control.FlowRule {
	return control.FlowRule{Proto: 6, Src: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
		Dst: netip.AddrFrom4([4]byte{10, 1, 0, 1}), SrcPort: uint16(i + 1), DstPort: 443, Queue: uint16(i % 4)}
}

// BenchmarkAddRules adds as many rules as a port takes, one by one, and takes them away again.
func BenchmarkAddRules(b *testing.B) {
	p := commandPort(b)
	b.ReportAllocs()
	for b.Loop() {
		for i := range nic.MaxRules {
			if _, err := p.AddFlow(ruleOf(i)); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		p.Reset()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/nic.MaxRules, "ns/rule")
}
