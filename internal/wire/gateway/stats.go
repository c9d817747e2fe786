package gateway

import "sync/atomic"

// Stats are a gateway's counters.
type Stats struct {
	Received   uint64 // frames given to netstack
	Filtered   uint64 // frames that were not for us, or may not come in
	Sent       uint64 // frames that the wire took
	OutDropped uint64 // frames that the wire dropped
	OutGaveUp  uint64 // frames whose receiver had no buffers for too long
	OutFull    uint64 // packets for which the queue to the wire had no room
	OutBad     uint64 // packets of netstack that are no frames
	TCPFlows   uint64 // connections through NAT and forwards, in all
	UDPFlows   uint64 // those of echoes included
	UDPLost    uint64 // datagrams that a socket, or who they were for, had no room for
	TCPOpen    int64  // now
	UDPOpen    int64
	Refused    uint64           // flows, datagrams for us and questions to be forwarded, beyond the bounds
	Evicted    uint64           // the same: that ended to make room for a port with fewer
	Denied     [NumRules]uint64 // flows, and questions, that Policy refuses
	Unreached  uint64           // flows whose other end did not answer; connections that a guest did not confirm
	Leases     int64            // given to unknown MACs, now
	BadDHCP    uint64           // requests that were none, or got no answer
	Queries    uint64           // of names
	Forwarded  uint64           // of these, to the host's resolvers
	BadQueries uint64           // that were none, or got an error of ours
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
