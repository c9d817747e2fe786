package gateway

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	nicID = 1
	// gsoMaxSize makes netstack's largest packet, MaxSize less 160 bytes for headers and 1, fit into 64 KiB with them.
	gsoMaxSize = 65535
)

// endpoint is the link endpoint of netstack: Ethernet that segments, and has verified what it delivers. Checksums of what
// is sent are netstack's to make, except of what is segmented: the link does not know which are still to be made.
type endpoint struct {
	mac tcpip.LinkAddress
	mtu uint32
	out *outbox
	to  atomic.Pointer[stack.NetworkDispatcher]
}

var (
	_ stack.LinkEndpoint = (*endpoint)(nil)
	_ stack.GSOEndpoint  = (*endpoint)(nil)
)

func (e *endpoint) dispatcher() stack.NetworkDispatcher {
	if d := e.to.Load(); d != nil {
		return *d
	}
	return nil
}

// WritePackets implements stack.LinkWriter.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		if !e.out.put(pkt) {
			return i, &tcpip.ErrNoBufferSpace{}
		}
	}
	return pkts.Len(), nil
}

func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		e.to.Store(nil)
		return
	}
	e.to.Store(&d)
}

func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityResolutionRequired
}

func (e *endpoint) AddHeader(pkt *stack.PacketBuffer) {
	eth := header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize))
	eth.Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

func (e *endpoint) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

func (e *endpoint) SupportedGSO() stack.SupportedGSO        { return stack.HostGSOSupported }
func (e *endpoint) GSOMaxSize() uint32                      { return gsoMaxSize }
func (e *endpoint) MTU() uint32                             { return e.mtu }
func (e *endpoint) SetMTU(uint32)                           {}
func (e *endpoint) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (e *endpoint) LinkAddress() tcpip.LinkAddress          { return e.mac }
func (e *endpoint) SetLinkAddress(tcpip.LinkAddress)        {}
func (e *endpoint) IsAttached() bool                        { return e.to.Load() != nil }
func (e *endpoint) Wait()                                   {}
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (e *endpoint) Close()                                  {}
func (e *endpoint) SetOnCloseAction(func())                 {}
