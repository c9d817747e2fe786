package stack

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

// link is the stack's link endpoint in netstack: Ethernet with checksum and segmentation offload.
type link struct {
	s   *Stack
	mac tcpip.LinkAddress
	mtu uint32
	gso bool
	to  atomic.Pointer[stack.NetworkDispatcher]
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

func (l *link) dispatcher() stack.NetworkDispatcher {
	if d := l.to.Load(); d != nil {
		return *d
	}
	return nil
}

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

func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.to.Store(nil)
		return
	}
	l.to.Store(&d)
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

func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	eth := header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize))
	eth.Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

func (l *link) MTU() uint32                             { return l.mtu }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (l *link) LinkAddress() tcpip.LinkAddress          { return l.mac }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) GSOMaxSize() uint32                      { return gsoMaxSize }
func (l *link) IsAttached() bool                        { return l.to.Load() != nil }
func (l *link) Wait()                                   {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (l *link) Close()                                  {}
func (l *link) SetOnCloseAction(func())                 {}
