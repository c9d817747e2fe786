// Package ether is what the netstacks of packages stack and gateway have in common: how one is set
// up, and a link endpoint, Ethernet with large packets. How packets leave, and which offloads there
// are, is for the type that embeds Link.
package ether

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// MaxGSO makes netstack's largest packet, stack.GSOEndpoint's GSOMaxSize less 160 bytes for headers
// and 1, fit into 64 KiB with them.
const MaxGSO = 65535

// Link is the part of a stack.LinkEndpoint, and of a stack.GSOEndpoint, that is the same for all.
// Its fields are set before it is attached. It must not be copied after.
type Link struct {
	Addr  tcpip.LinkAddress
	Bytes uint32 // MTU
	to    atomic.Pointer[stack.NetworkDispatcher]
}

// Dispatcher is where packets that arrive go; nil while the endpoint is not attached.
func (l *Link) Dispatcher() stack.NetworkDispatcher {
	if d := l.to.Load(); d != nil {
		return *d
	}
	return nil
}

func (l *Link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.to.Store(nil)
		return
	}
	l.to.Store(&d)
}

func (l *Link) AddHeader(pkt *stack.PacketBuffer) {
	eth := header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize))
	eth.Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

func (l *Link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

func (l *Link) MTU() uint32                             { return l.Bytes }
func (l *Link) SetMTU(uint32)                           {}
func (l *Link) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (l *Link) LinkAddress() tcpip.LinkAddress          { return l.Addr }
func (l *Link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *Link) GSOMaxSize() uint32                      { return MaxGSO }
func (l *Link) IsAttached() bool                        { return l.to.Load() != nil }
func (l *Link) Wait()                                   {}
func (l *Link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (l *Link) Close()                                  {}
func (l *Link) SetOnCloseAction(func())                 {}
