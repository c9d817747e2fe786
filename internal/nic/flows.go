package nic

import (
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// This does not compile unless flows has a drop counter for each wire.DropReason.
var _ [flows.NumReasons - int(wire.NumDropReasons)]struct{}

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
		if windowOff := int(h.L4Off) + 14; h.TCPFlags&ack != 0 && len(p.Header) >= windowOff+2 { // RFC 9293, 3.1: window
			a.Acked(h.Ack, uint16(p.Header[windowOff])<<8|uint16(p.Header[windowOff+1]))
		}
	}
}

// dropFlow adds a dropped packet. A transmitted packet that a link loses (DropLinkLoss) is counted by countFlow, too.
func dropFlow(a *flows.Acc, p *wire.Packet, r wire.DropReason) {
	a.Drops[r]++
	a.Lost += uint64(p.PayloadLen)
}

// flowsOfTx returns the shard of transmit queue i. It is nil if the port keeps no account of flows, or has no
// queue i.
func (p *Port) flowsOfTx(i int) *flows.Shard {
	if p.flows == nil || i >= len(p.queues) {
		return nil
	}
	return p.flows.Shard(len(p.queues) + i)
}

// QueueFlows are the counters of a queue's flows in one direction: of each flow with a row, and the sum over flows that
// have lost theirs.
type QueueFlows struct {
	Queue  int
	Tx     bool
	Rows   []flows.Row // in any order
	Others flows.Others
}

// FlowAccount reads the accounts of the queues that have counted any flow: receive queues, then transmit queues.
// It returns nil if there are none, as when Config.Flows is 0.
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

// CountsFlows reports whether the port keeps an account of flows.
func (p *Port) CountsFlows() bool { return p.flows != nil }

// Reaches reports whether the NIC accesses a GPU's memory peer to peer, and not through host memory.
func (p *Port) Reaches(gpu int) bool { return p.p2p.Load()&(1<<uint(gpu)) != 0 }
