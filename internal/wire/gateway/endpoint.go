package gateway

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
)

// endpoint is the link endpoint of netstack: Ethernet that segments, and has verified what it
// delivers, but for fragments. Checksums of what is sent are netstack's to make, except of what is segmented: the link
// does not know which are still to be made.
type endpoint struct {
	ether.Link
	out *outbox

	// fragment is whether the frame that netstack has now is one, as port.from is its sender.
	fragment atomic.Bool
}

var (
	_ stack.LinkEndpoint = (*endpoint)(nil)
	_ stack.GSOEndpoint  = (*endpoint)(nil)
)

// WritePackets implements stack.LinkWriter.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		if !e.out.put(pkt) {
			return i, &tcpip.ErrNoBufferSpace{}
		}
	}
	return pkts.Len(), nil
}

// Capabilities implements stack.LinkEndpoint. Netstack asks for each frame that it gets.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	if e.fragment.Load() {
		return stack.CapabilityResolutionRequired
	}
	return stack.CapabilityRXChecksumOffload | stack.CapabilityResolutionRequired
}

func (e *endpoint) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }
