// Package ether has functions for users of netstack (gVisor's TCP/IP stack), and [Link], the common part of link
// endpoints for Ethernet that take TCP segments of up to 64 KiB (GSO).
package ether

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// MaxGSO is the GSOMaxSize of a Link (stack.GSOEndpoint). Netstack's largest segment has GSOMaxSize less 160
// less 1 bytes of payload, so that it fits into 64 KiB with its headers.
const MaxGSO = 65535

// Link is the common part of stack.LinkEndpoints that are stack.GSOEndpoints. Set its fields before netstack
// attaches it, and do not copy it after that.
type Link struct {
	Addr  tcpip.LinkAddress
	Bytes uint32 // MTU
	to    atomic.Pointer[stack.NetworkDispatcher]
}

// Dispatcher returns the dispatcher for arriving packets; nil: not attached.
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
