package nic

import (
	"vnic.dev/vnic/control"
	"vnic.dev/vnic/splitter"
)

// meter counts the packets of one connection on one port. Its receive side is written under the lock of the receive
// queue that the flow is steered to, its transmit side by the worker of the transmit queue that sends the flow; a driver
// that moves a metered flow between queues while packets are under way may lose counts, never corrupt them.
type meter struct {
	id     uint32
	spec   control.Meter
	rx, tx direction
}

// direction is one flow of a meter's connection.
type direction struct {
	flow splitter.Flow
	Counters
	seen bool
	next uint32 // sequence number behind the highest payload byte seen
}

// count adds a packet of n payload bytes, and finds which of them were seen before.
func (d *direction) count(h *splitter.Headers, segments, header, n uint64, w *where) {
	d.Counters.count(segments, header, w)
	if h.Class != splitter.TCP || n == 0 {
		return
	}
	end := h.Seq + uint32(n)
	switch fresh := int32(end - d.next); {
	case !d.seen || uint64(fresh) >= n && fresh > 0:
		d.seen, d.next = true, end
	case fresh > 0:
		d.retrans.add(n - uint64(fresh))
		d.next = end
	default:
		d.retrans.add(n)
	}
}

// flowOf gives the flow of packets from src to dst.
func meterFlows(m control.Meter) (rx, tx splitter.Flow) {
	local, remote := m.Local, m.Remote
	rx.Proto, tx.Proto = m.Proto, m.Proto
	rx.IPv6 = !local.Addr().Unmap().Is4()
	tx.IPv6 = rx.IPv6
	putAddr(&rx.Src, remote.Addr())
	putAddr(&rx.Dst, local.Addr())
	rx.SrcPort, rx.DstPort = remote.Port(), local.Port()
	tx.Src, tx.Dst, tx.SrcPort, tx.DstPort = rx.Dst, rx.Src, rx.DstPort, rx.SrcPort
	return rx, tx
}
