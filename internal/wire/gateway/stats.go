package gateway

import "sync/atomic"

// Stats are a gateway's counters.
type Stats struct {
	Received   uint64 // passed to netstack, or pings to addresses beyond the link that the filter refused
	Filtered   uint64 // not for the gateway, or refused by its filter
	Sent       uint64 // frames that the wire took
	OutDropped uint64 // frames that the wire dropped
	OutGaveUp  uint64 // whose receiver was busy for too long or too slow, or when the gateway was closed
	OutFull    uint64 // for which the queue to the wire had no room
	OutBad     uint64 // invalid packets of netstack
	TCPFlows   uint64 // through NAT and forwards, total
	UDPFlows   uint64 // echoes included, total
	UDPLost    uint64 // datagrams and echo replies lost for lack of room, or because ARP or ND did not find the guest
	TCPOpen    int64  // also ones being made
	UDPOpen    int64
	Refused    uint64           // connections, flows, datagrams for services and questions beyond the limits
	Evicted    uint64           // the same, which made room for others
	Denied     [NumRules]uint64 // attempts to reach a server or resolver that Policy refused
	Unreached  uint64           // connections, flows and datagrams whose other end the gateway could not reach
	Leases     int64            // pool addresses leased, offered or withheld now
	BadDHCP    uint64           // requests that were invalid, not from their client, or found no free address
	Queries    uint64           // DNS questions
	Forwarded  uint64           // part of Queries: for the host's resolvers
	BadQueries uint64           // part of Queries: invalid, refused, or not answered by a resolver
}

type counters struct {
	received, filtered, sent, outDropped, outGaveUp, outFull, outBad atomic.Uint64
	tcpFlows, udpFlows, udpLost, refused, evicted, unreached         atomic.Uint64
	denied                                                           [NumRules]atomic.Uint64
	badDHCP, queries, forwarded, badQueries                          atomic.Uint64
}

// Stats reads the counters.
func (g *Gateway) Stats() Stats {
	c := &g.count
	s := Stats{
		Received: c.received.Load(), Filtered: c.filtered.Load(), Sent: c.sent.Load(), OutDropped: c.outDropped.Load(),
		OutGaveUp: c.outGaveUp.Load(), OutFull: c.outFull.Load(), OutBad: c.outBad.Load(),
		TCPFlows: c.tcpFlows.Load(), UDPFlows: c.udpFlows.Load(), UDPLost: c.udpLost.Load(),
		TCPOpen: g.tcp.taken(), UDPOpen: g.udp.taken(), Refused: c.refused.Load(), Evicted: c.evicted.Load(),
		Unreached: c.unreached.Load(), Leases: g.leases.taken(), BadDHCP: c.badDHCP.Load(),
		Queries: c.queries.Load(), Forwarded: c.forwarded.Load(), BadQueries: c.badQueries.Load(),
	}
	for i := range c.denied {
		s.Denied[i] = c.denied[i].Load()
	}
	return s
}
