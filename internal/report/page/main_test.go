package page

import (
	"fmt"
	"testing"
	"time"

	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const hostile = `</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>`

// large returns the counters of a lab that is larger than the bounds of a page and of a recording.
func large(n uint64) *stat.Page {
	p := &stat.Page{Snapshot: &stat.Snapshot{Schema: 1, Command: "run", Time: time.Unix(1e9, 0), Uptime: 1e6}}
	p.Flows = &stat.Flows{}
	window := uint16(65535)
	for m := range 8 {
		x := stat.Machine{Name: fmt.Sprintf("machine%d %s", m, hostile)}
		for i := range 16 {
			name := fmt.Sprintf("%s.nic%d", x.Name, i)
			x.NICs = append(x.NICs, stat.NIC{Name: name, Model: "virtio", Addrs: []string{"10.0.0.1/24", "fd76::1/64"}})
			gpu := fmt.Sprintf("%s.gpu%d", x.Name, i)
			x.GPUs = append(x.GPUs, stat.PageGPU{Name: gpu, Bytes: 64 << 30})
			x.Tree = append(x.Tree, stat.TreeNode{Name: fmt.Sprint("node", i), Kind: "socket"})
			q := stat.Queue{RX: stat.Direction{Packets: n}}
			p.Ports = append(p.Ports, stat.PortCounters{Name: name, Queues: []stat.Queue{q, q, q, q}})
			for _, way := range []string{"up", "down", "in", "out"} {
				p.Links = append(p.Links, stat.LabLink{Name: name + " " + way, Rate: 1e10, Bytes: n + uint64(i), Busy: 1e5})
			}
			g := stat.GPUMap{GPU: gpu, Bytes: 64 << 30}
			for k := range uint64(4000) {
				g.Ranges = append(g.Ranges, stat.MemoryRange{Off: k << 23, Len: 4096, State: "held", Port: name,
					Queue: int(k % 64), Binding: uint32(k)})
			}
			p.Memory = append(p.Memory, g)
		}
		p.Machines = append(p.Machines, x)
	}
	for i := range 2000 {
		side := stat.FlowSide{Port: p.Ports[0].Name, Queues: []int{1, 2, 3}, Device: n - uint64(i), Header: n, Again: n,
			Drops: map[string]uint64{"no-buffer": n, "link-loss": n}, InFlight: n, Window: &window}
		p.Flows.List = append(p.Flows.List, stat.Flow{Proto: "tcp", State: "open",
			From: fmt.Sprintf("[fd76:6e69:1234:5678:9abc:def0:1234:5678]:%d", i),
			To:   "[fd76:6e69:1234:5678:9abc:def0:1234:5679]:65535", TX: []stat.FlowSide{side}, RX: []stat.FlowSide{side}})
	}
	for i := range 512 {
		p.Events = append(p.Events, stat.Event{Seq: uint64(i), Kind: "fault", Text: fmt.Sprintf("%s %01000d", hostile, i)})
	}
	return p
}

func small() *stat.Page {
	port := stat.PortCounters{Name: "A", Kind: "virtio", Queues: []stat.Queue{}}
	port.Link.SentBytes = 7
	return &stat.Page{
		Snapshot: &stat.Snapshot{Schema: 1, Command: "run", Ports: []stat.PortCounters{port}},
		Machines: []stat.Machine{{Name: "A", NICs: []stat.NIC{{Name: "A"}}}},
		Events:   []stat.Event{{Seq: 1, Kind: "rule", Text: "rule 1"}},
	}
}
