// Package gateway is a machine of its own on a switch: a router for guests, based on gVisor's
// netstack.
//
// It is a wire.Port without a NIC. One goroutine passes the wire's frames to netstack, and another netstack's
// frames to the wire. At its own addresses it offers:
//
//   - ARP, neighbor discovery and router advertisements (RFC 4861), ICMP echo of its own addresses;
//     a ping of another address goes there by NAT if Policy and the host allow that
//     (net.ipv4.ping_group_range), otherwise it is answered by ICMP's "administratively
//     prohibited", or without NAT "unreachable";
//   - DHCPv4 (RFC 2131): the address of each Host by its MAC, and a pool for MACs of no Host;
//   - DNS over UDP and TCP: the Hosts' names and its own; with NAT, other questions go to the
//     host's resolvers;
//   - NAT, if configured: guests' TCP connections and datagram flows (UDP, echoes) end here, and
//     continue as sockets of the host, as far as Policy allows. The gateway's own address stands
//     for the host's loopback;
//   - forwards: sockets of the host that lead to a guest.
//
// Guests are hostile. The filter (filter.go) decides by addresses which frames netstack sees, because
// netstack is promiscuous with NAT, and would answer for any address. Policy (policy.go) is checked before a
// socket is made for a guest, on the address and port that are dialled. By default it refuses reserved and
// link-local addresses, clouds' metadata services, IPv6 addresses that embed one of them, and all ports of
// the host.
//
// A datagram flow is identified by the guest's address and port and the server's address, so a server may
// answer from another port (TFTP). It ends after about 2 minutes of silence (RFC 4787). Errors of the sockets of
// NAT's flows (IP_RECVERR), and datagrams without hops left, are reported to the guest by ICMP.
//
// Queues, flows, leases and pending questions have limits. A port of the switch may have all connections, flows
// and questions that are free. When none is free, a port with less than its equal share takes one of the port
// that has most (quota.go, unfinished.go). The wire identifies the port (wire.Packet.From), not the source
// address, so a guest that invents addresses gets no more.
//
// Connections share 256 MiB of buffers, the sockets of datagram flows another 256 MiB (budget.go). A UDP flow
// of NAT has one socket that receives from any port of the server, and up to 8 that send, one for each server
// port, time to live and DF.
//
// Incoming frames wait for netstack in a queue for each port (inbox.go); senders to a full queue wait (Busy).
// Outgoing frames wait in a queue for each destination (outbox.go). Like a NIC, the gateway holds frames for
// a guest without buffers for a limited time (nic.Sender).
//
// The addresses of the gateway and of Hosts with a MAC are reserved on the switch. A DHCP message is accepted
// only from its client (asksForAnother, mayAsk). An address that another port uses is not leased.
//
// A goroutine that holds a lock of the inbox's or outbox's queues, of leases, quotas, turns or tables of
// flows takes no other lock, with these exceptions: it may wake waiting goroutines; under a lane's lock it
// takes the inbox's; under the leases' lock it reads and changes the switch's address bindings. Under the
// lock of its backlog a flow writes to its socket without waiting, reports errors to the guest, and takes the
// locks of a budget and of the Gateway.
//
// Not implemented: DHCPv6; ICMP except echoes; IP multicast, and protocols other than TCP, UDP and ICMP;
// VLANs (a tag of VLAN 0 is ignored); guests' addresses outside the gateway's prefixes; two gateways with the
// same addresses on a switch. TCP options, urgent data and path MTU discovery of TCP end here.
package gateway
