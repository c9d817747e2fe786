package stack

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
)

// AskNeighbors makes a stack ask up to times times, once a second, for the link address of a neighbor that does not
// answer. Netstack's default is three times.
func (s *Stack) AskNeighbors(times uint32) error {
	c := stack.DefaultNUDConfigurations()
	c.MaxMulticastProbes, c.MaxUnicastProbes = times, times
	for _, p := range []tcpip.NetworkProtocolNumber{header.IPv4ProtocolNumber, header.IPv6ProtocolNumber} {
		if err := s.ns.SetNUDConfigurations(ether.NIC, p, c); err != nil {
			return fmt.Errorf("neighbors of protocol %#x: %s", p, err)
		}
	}
	return nil
}
