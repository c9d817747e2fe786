package stack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/stack/internal/ether"
)

// link is the stack's link endpoint in netstack: Ethernet with checksum and segmentation offload.
type link struct {
	ether.Link
	s   *Stack
	gso bool
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

// queue is where a packet, and all of its flow, is sent.
func (l *link) queue(pkt *stack.PacketBuffer) *txQueue { return l.s.tx[int(pkt.Hash)%len(l.s.tx)] }

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		if err := l.queue(pkt).write(pkt); err != nil {
			return i, err
		}
	}
	return pkts.Len(), nil
}

func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload | stack.CapabilityResolutionRequired
}

func (l *link) SupportedGSO() stack.SupportedGSO {
	if l.gso {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}
