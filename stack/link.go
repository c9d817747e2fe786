package stack

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
)

// link is the stack's link endpoint in netstack: Ethernet with checksum offload and, if gso is set, segmentation
// offload.
type link struct {
	ether.Link
	s   *Stack
	gso bool

	// unverified: netstack is receiving a packet in fragments, whose checksum was not checked.
	unverified atomic.Bool
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

// queue returns the transmit queue of a packet: its flow's, or for an acknowledgment the one with the fewest frames
// with payload if the flow's has many. Behind another flow's payload, acknowledgments would make two transfers in
// opposite directions alternately idle (Zhang, Shenker, Clark, "Observations on the Dynamics of a Congestion
// Control Algorithm", SIGCOMM 1991).
func (l *link) queue(pkt *stack.PacketBuffer) *txQueue {
	q := l.s.tx[int(pkt.Hash)%len(l.s.tx)]
	if len(l.s.tx) > 1 && q.waiting.Load() >= fewFrames && acknowledges(pkt) {
		for _, other := range l.s.tx {
			if other.waiting.Load() < q.waiting.Load() {
				q = other
			}
		}
	}
	return q
}

// fewFrames is from how many frames with payload on a queue's ring on acknowledgments use another queue.
const fewFrames = 8

func acknowledges(pkt *stack.PacketBuffer) bool {
	if pkt.TransportProtocolNumber != header.TCPProtocolNumber || pkt.Data().Size() > 0 {
		return false
	}
	tcp := header.TCP(pkt.TransportHeader().Slice())
	return len(tcp) >= header.TCPMinimumSize && tcp.Flags() == header.TCPFlagAck
}

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		if err := l.queue(pkt).write(pkt); err != nil {
			return i, err
		}
	}
	return pkts.Len(), nil
}

// Capabilities implements stack.LinkEndpoint.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	c := stack.CapabilityTXChecksumOffload | stack.CapabilityResolutionRequired
	if !l.unverified.Load() {
		c |= stack.CapabilityRXChecksumOffload
	}
	return c
}

func (l *link) SupportedGSO() stack.SupportedGSO {
	if l.gso {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}
