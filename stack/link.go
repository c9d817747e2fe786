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

	// unverified: the packet that inject last gave to netstack is a fragment, so its TCP or UDP checksum was not checked.
	unverified atomic.Bool
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

// queue returns the transmit queue of a packet: its flow's, or for a segment that only acknowledges, the queue with
// the fewest waiting frames with payload (txQueue.waiting), if the flow's has fewFrames or more. Behind another flow's
// payload, acknowledgments could make two transfers in opposite directions alternately idle (Zhang, Shenker, Clark,
// "Observations on the Dynamics of a Congestion Control Algorithm", SIGCOMM 1991).
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

// fewFrames is how many frames with payload a flow's queue must have waiting before its acknowledgments may use another
// queue.
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
