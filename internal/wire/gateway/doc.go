// Package gateway is a machine of its own on a switch, based on gVisor's netstack: it serves guests and, with NAT, is
// their router.
//
// It is a wire.Port without a NIC. One goroutine passes frames from the wire to netstack, and another
// passes netstack's packets to the wire. The gateway offers:
//
//   - for IPv4 ARP; for IPv6 neighbor discovery and router advertisements (RFC 4861);
//   - echo replies from its own addresses; a ping of a global address beyond the link goes
//     there by NAT if Policy and the host allow that (net.ipv4.ping_group_range), otherwise it
//     is answered by ICMP's "administratively prohibited", or without NAT "unreachable", within
//     a rate;
//   - DHCPv4 (RFC 2131): the address of each Host by its MAC, and a pool for MACs of no Host;
//   - DNS over UDP and TCP: the Hosts' names, its own, and reverse names in its networks; with
//     NAT, questions about other domains go to the host's resolvers;
//   - NAT, if configured: guests' TCP connections and datagram flows (UDP, echoes) end here, and
//     continue as sockets of the host, as far as Policy allows. The gateway's own addresses stand
//     for the host's loopback, but for echoes and the services above;
//   - forwards: sockets of the host that lead to a guest.
//
// Guests may be hostile. The filter (filter.go) decides by addresses and protocols which frames netstack sees:
// with NAT netstack is promiscuous, and would answer for any address. Policy (policy.go) is checked before
// NAT or DNS makes a socket for a guest, on the address and port that are dialled. By default NAT refuses reserved
// and link-local addresses, clouds' metadata services, IPv6 addresses that embed one of them (embedded.go has the
// forms), and all ports of the host.
//
// A datagram flow of NAT is identified by the protocol, the guest's address and port, and the server's address, so a
// server may answer from another port (TFTP); one of a forward, by the outside sender. A flow ends after about 2
// minutes of silence (RFC 4787), or earlier, as when others need its place. If a socket of a NAT flow has an error that
// is reported to guests (icmperror.go), or a datagram for NAT has no hops left, an ICMP error goes to the guest,
// within a rate.
//
// Queues, flows, leases and pending questions have limits. A port of the switch may have all connections, flows
// and questions that are free. When none is free, a port with less than its equal share takes one of the port
// that has most (quota.go, unfinished.go). The gateway counts what guests begin by the port from which
// the frame comes (wire.Packet.From), not by source address, so a guest that invents addresses gets no more.
//
// TCP connections share 256 MiB of buffers in netstack, the sockets of datagram flows another 256 MiB (budget.go).
// A UDP flow of NAT has up to 8 sockets that send, one for each server port, time to live and DF, and one that receives
// from the server's other ports.
//
// Incoming frames wait for netstack in a queue for each port (inbox.go); senders to a full queue wait (Busy).
// Outgoing frames wait in a queue for each destination (outbox.go). Like a NIC, the gateway holds frames for
// a guest without buffers for a limited time (nic.Sender).
//
// The addresses of the gateway and of Hosts with a MAC are reserved on the switch. A DHCP message is accepted
// only from its client (asksForAnother, mayAsk), except in fragments that name a client without a wire.Identity. A
// client with one gets no lease of a pool address that another port uses.
//
// A goroutine that holds a lock of the inbox's or outbox's queues, of leases, quotas, turns or tables of
// flows takes no other lock of vnic's, with these exceptions: it may wake waiting goroutines; under a lane's lock it
// takes the inbox's; under the leases' lock it reads and changes the switch's address bindings. Under the
// lock of its backlog a flow writes to its socket without waiting, reports errors to the guest, and takes the
// locks of a budget and of the Gateway.
//
// Not implemented: DHCPv6; ICMP errors and queries from guests, except echoes; IP multicast, and protocols other
// than TCP, UDP and ICMP; VLANs (a tag of VLAN 0 is ignored); guests' addresses outside the gateway's prefixes; two
// gateways with the same addresses on a switch. TCP options, urgent data and path MTU discovery of TCP end here.
package gateway
