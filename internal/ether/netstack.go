package ether

import (
	"fmt"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// NIC is the number of the only NIC of a netstack from [New].
const NIC = 1

// New makes a netstack of IPv4, IPv6 and ARP with TCP, ICMP and the transports of more, without duplicate address
// detection and without a NIC.
func New(more ...stack.TransportProtocolFactory) *stack.Stack {
	return stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocol, ipv6.NewProtocolWithOptions(ipv6.Options{DADConfigs: stack.DADConfigurations{}}), arp.NewProtocol,
		},
		TransportProtocols: append(more, tcp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6),
	})
}

// MinRTO returns the option for TCP's minimum retransmission timeout: d, or netstack's maximum if that is
// shorter.
func MinRTO(d time.Duration) *tcpip.TCPMinRTOOption {
	o := tcpip.TCPMinRTOOption(min(d, tcp.MaxRTO))
	return &o
}

// SetTCP sets options of TCP in ns, in order, until ns refuses one.
func SetTCP(ns *stack.Stack, options ...tcpip.SettableTransportProtocolOption) error {
	for _, o := range options {
		if err := ns.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("tcp option %T: %s", o, err)
		}
	}
	return nil
}

// AddAddress gives the NIC an address, and returns the route to the address's network, which the caller adds.
func AddAddress(ns *stack.Stack, p netip.Prefix) (tcpip.Route, error) {
	a := tcpip.ProtocolAddress{
		Protocol:          Protocol(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: Address(p.Addr()), PrefixLen: p.Bits()},
	}
	if err := ns.AddProtocolAddress(NIC, a, stack.AddressProperties{}); err != nil {
		return tcpip.Route{}, fmt.Errorf("address %v: %s", p, err)
	}
	return tcpip.Route{Destination: a.AddressWithPrefix.Subnet(), NIC: NIC}, nil
}

// DefaultRoute returns the default route through a gateway, for the gateway's IP version.
func DefaultRoute(gateway netip.Addr) tcpip.Route {
	to := header.IPv4EmptySubnet
	if gateway.Is6() {
		to = header.IPv6EmptySubnet
	}
	return tcpip.Route{Destination: to, Gateway: Address(gateway), NIC: NIC}
}

// Protocol returns the network protocol of an address.
func Protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// Address returns an address in netstack's form.
func Address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// Signal puts a value into a channel of capacity 1, unless it is full. It never waits.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
