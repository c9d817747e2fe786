package gateway

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
)

// endpoint is netstack's link endpoint. TCP and UDP checksums of frames that it passes to netstack are verified or
// known to be good, except in fragments.
type endpoint struct {
	ether.Link
	out *outbox

	// fragment is true if the frame that netstack processes now, or the last one, is a fragment.
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

// Capabilities implements stack.LinkEndpoint.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	if e.fragment.Load() {
		return stack.CapabilityResolutionRequired
	}
	return stack.CapabilityRXChecksumOffload | stack.CapabilityResolutionRequired
}

func (e *endpoint) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }
