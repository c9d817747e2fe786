package nic

import (
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Each reason of a drop has a place in what is counted of a flow.
var _ [flows.NumReasons - int(wire.NumDropReasons)]struct{}

// countFlow adds a packet that was received or sent to what its batch has of its flow.
func countFlow(a *flows.Acc, p *wire.Packet, segments, header uint32, w *bytesByMem) {
	a.Packets++
	a.Segments += uint64(segments)
	a.Header += uint64(header)
	a.Device += w.device
	a.GPUFile += w.gpuFile
	a.Host += w.host
	a.Bounced += w.bounced
	if h := &p.Meta.Headers; h.Class == splitter.TCP {
		a.TCP(h.TCPFlags, h.Seq, p.PayloadLen)
		const ack = 0x10
		if at := int(h.L4Off) + 14; h.TCPFlags&ack != 0 && len(p.Header) >= at+2 { // RFC 9293, 3.1
			a.Acked(h.Ack, uint16(p.Header[at])<<8|uint16(p.Header[at+1]))
		}
	}
}

// dropFlow adds one that was dropped. One that was lost on a link was sent: countFlow adds it as well.
func dropFlow(a *flows.Acc, p *wire.Packet, r wire.DropReason) {
	a.Drops[r]++
	a.Lost += uint64(p.PayloadLen)
}

// flowsOfTx gives the place of transmit queue i in the account of flows, nil if it has none.
func (p *Port) flowsOfTx(i int) *flows.Shard {
	if p.flows == nil || i >= len(p.queues) {
		return nil
	}
	return p.flows.Shard(len(p.queues) + i)
}

// QueueFlows is what a queue has counted of each flow, in one direction.
type QueueFlows struct {
	Queue  int
	Tx     bool
	Rows   []flows.Row // in no order
	Others flows.Others
}

// FlowAccount reads the account of flows: receive queues, then transmit queues. It is nil where none is kept
// (Config.Flows).
func (p *Port) FlowAccount() (list []QueueFlows) {
	if p.flows == nil {
		return nil
	}
	p.settle()
	n := len(p.queues)
	for i := range 2 * n {
		q := QueueFlows{Queue: i % n, Tx: i >= n}
		q.Rows, q.Others = p.flows.Shard(i).Read(nil)
		if len(q.Rows) > 0 || q.Others.Flows > 0 {
			list = append(list, q)
		}
	}
	return list
}

// CountsFlows says whether there is an account of flows.
func (p *Port) CountsFlows() bool { return p.flows != nil }

// Reaches says whether the NIC reads and writes a GPU's memory itself; else payload goes through host memory.
func (p *Port) Reaches(gpu int) bool { return p.p2p.Load()&(1<<uint(gpu)) != 0 }
