package stack

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
)

// link is the stack's link endpoint in netstack: Ethernet with checksum and segmentation offload.
type link struct {
	ether.Link
	s   *Stack
	gso bool

	// unverified is whether nobody has looked at the checksum of the packet that netstack gets now: it came in fragments.
	unverified atomic.Bool
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

// queue is where a packet, and all of its flow, is sent; but an acknowledgment goes where little payload waits, if
// much does on its own queue. Behind another flow's payload, two transfers in opposite directions take turns at being
// idle: while one sends its window, what the other waits for is behind it (Zhang, Shenker, Clark, "Observations on
// the Dynamics of a Congestion Control Algorithm", SIGCOMM 1991). Linux keeps its rings short instead (TCP small
// queues).
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

// fewFrames with payload on a ring are not worth another one, and one more thread that serves it.
const fewFrames = 8

// acknowledges says whether a packet is an acknowledgment and nothing else, which may overtake what is before it.
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

// Capabilities implements stack.LinkEndpoint. Netstack asks for each packet that it gets.
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
