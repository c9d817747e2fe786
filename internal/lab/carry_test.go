package lab

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// BenchmarkCarry measures how long it takes to compute, from invented counters of a lab's 250 ports, how many bytes
// have passed over each of its links.
func BenchmarkCarry(b *testing.B) {
	var d Description
	for i := range 50 {
		g := Guest{Name: fmt.Sprint("g", i), Sockets: []Socket{{Name: "s0", DRAM: 300e9}},
			Switches: []Switch{{Name: "sw0", Slot: Slot{Below: "s0"}}, {Name: "sw1", Slot: Slot{Below: "sw0"}}},
			GPUs:     []GPU{{Name: fmt.Sprintf("g%d.gpu0", i), Memory: 4096, Slot: Slot{Below: "sw0"}}}}
		for j := range MaxPorts / 50 {
			g.NICs = append(g.NICs, NIC{Name: fmt.Sprintf("g%d.nic%d", i, j), Model: Virtio, QueuePairs: 4, Rate: 25e9,
				Slot: Slot{Below: "sw1"}})
		}
		d.Guests = append(d.Guests, g)
	}
	l := testkit.Must(Open(d, Options{}))(b)
	defer l.Close()
	c := control.DirCounters{Packets: 1, Segments: 1, HeaderBytes: 66, DeviceBytes: 1 << 20, HostBytes: 1 << 20}
	var edges int
	for b.Loop() {
		to := make(map[*Edge]Carried)
		for _, p := range l.Ports() {
			p.Carry(to) // reads the port's counters, which are zero
			var t nic.Traffic
			t.Direct[p.GPUs[0].ID()] = 1 << 20
			for range p.QueuePairs {
				p.carryQueue(to, &c, &t, true)
				p.carryQueue(to, &c, &t, false)
			}
		}
		edges = len(to)
	}
	b.ReportMetric(float64(edges), "edges")
}
