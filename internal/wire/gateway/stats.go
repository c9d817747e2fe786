package gateway

import "sync/atomic"

// Stats are a gateway's counters.
type Stats struct {
	Received   uint64           // frames passed to netstack, and pings that the filter refused (filter.pingBeyond)
	Filtered   uint64           // frames for another MAC, or refused by the filter, except such pings
	Sent       uint64           // frames that the wire took
	OutDropped uint64           // frames that the wire dropped
	OutGaveUp  uint64           // frames whose receiver was too slow, busy for too long, or busy when the gateway closed
	OutFull    uint64           // packets dropped because the outbox had no room or was closed
	OutBad     uint64           // packets in the outbox that were malformed or too long
	TCPFlows   uint64           // connections made through NAT and forwards, total
	UDPFlows   uint64           // datagram flows of NAT and forwards, echoes included, total
	UDPLost    uint64           // datagrams, echo replies lost: no room, guest not found by ARP or ND, or flow ended
	TCPOpen    int64            // connections of NAT and forwards, open or being made
	UDPOpen    int64            // datagram flows of NAT and forwards now
	Refused    uint64           // connections, flows, datagrams for services and questions beyond the limits
	Evicted    uint64           // connections, flows, datagrams and questions that made room for others
	Denied     [NumRules]uint64 // by Rule: attempts to reach a server or resolver that Policy or Own refused
	Unreached  uint64           // connections, flows and datagrams whose other end the gateway could not reach
	Leases     int64            // pool addresses leased, offered or withheld now
	BadDHCP    uint64           // DHCP messages: invalid, relayed, not from their client, or no free address for them
	Queries    uint64           // messages to the DNS service
	Forwarded  uint64           // part of Queries: for the host's resolvers, within the limits
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
