// Package gateway is a machine of its own on a switch: a router for guests, based on gVisor's
// netstack.
//
// It is a wire.Port without a NIC. Frames that the wire delivers are copied into memory of the
// process, and one goroutine passes them to netstack; another goroutine passes netstack's frames to
// the wire. The gateway accepts and sends GSO packets and partial checksums. Except for short pieces,
// streams are not copied between netstack and the host's socket: netstack writes a guest's data to the
// socket, and reads the data for the guest from there. At its own addresses the gateway offers:
//
//   - ARP, neighbor discovery and router advertisements (RFC 4861), ICMP echo of its own addresses;
//     a ping of another address goes there by NAT if the host allows that
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
// Guests are hostile. The filter (filter.go) decides by addresses which frames netstack sees,
// because netstack is promiscuous with NAT, and would answer for any address. Policy (policy.go) is
// checked before a socket is made for a guest, on the address and port that are dialled: after
// reassembly, whatever name or headers led there. By default it refuses reserved and link-local
// addresses, clouds' metadata services, and IPv6 addresses that embed one of them; Policy.HostPorts
// lists the reachable ports of the host, and is empty by default. A check compares the address, and
// at most 7 addresses embedded in it, with each prefix of the policy. The gateway reads the host's
// addresses at most once a second, and logs at most one refusal of each guest a second.
//
// A datagram flow is identified by the guest's address and port and the server's address, so a
// server may answer from another port (TFTP); so may a guest behind a forward. A flow
// ends after 2 minutes of silence (RFC 4787). Its packets are forwarded as by a router: with
// one hop less, and their DF, which IPv6 packets have unless the guest has fragmented them itself.
// Errors of the host's sockets (IP_RECVERR), and packets without hops left, are reported to the
// guest by ICMP, and the flow and its source port stay. A port of the switch gets at most 50 errors
// at once, and 1,000 a second. Guests may send ICMP echoes, and what neighbor discovery needs. The
// filter refuses their ICMP errors, because netstack would apply an error to any guest's connection
// that it quotes.
//
// Queues, flows, leases and pending questions have limits: 1,024 connections; 256 pending ones, whose
// server gets 10 seconds to accept, and then the guest 10 seconds to confirm; 1,024 closed connections
// that netstack has not finished, before it makes new ones (unfinished.go); 1,024 datagram flows;
// 128 forwarded questions; 32 connections for questions; and 256 datagrams of 4 KiB that wait for
// each service. A port of the switch may use all that is free. When nothing is free, a port with
// less than its equal share takes an entry of the port that has most: the oldest one; of datagram
// flows, first one with a question and an answer, then the one that has been silent for longest.
// Any other port is refused, except that for a datagram flow it gives up one of its own, and for a
// connection a closed one in TIME-WAIT (quota.go, unfinished.go). The wire identifies the
// port (wire.Packet.From), not the source address, so a guest that invents addresses gets no more.
// Refused and evicted entries are counted in Stats; finding the entry to evict costs a look at each
// of the port's.
//
// Connections share 256 MiB of buffers (budget.go): the first ones of a port have 1 MiB each way,
// later ones less, and from the 64th on, or when the rest is used up, 64 KiB. The sockets of all
// datagram flows share another 256 MiB of SO_RCVBUF, which the kernel doubles for its own overhead:
// the first ones of a port have 2 MiB, and each has at least 64 KiB. A flow has one socket that
// receives from any port of the server, and up to 8 that send, one for each server port, time to
// live and DF. Beyond that it closes the socket that it opened first. There are at most 4,096
// descriptors, beside the descriptors of flows that are just ending. 4 flows of NAT at a time
// open sockets, of the ports in turn (turns.go). Sockets of forwards have 4 MiB each in addition.
//
// Incoming frames wait for netstack in a queue for each port; the queues are served in turn, by
// bytes (inbox.go). They share 512 frames and 4 MiB in equal parts, and each has at least 32 frames
// and 128 KiB. Senders to a full queue wait (Busy): not for long, because netstack never stops
// taking frames. Like a NIC, the gateway holds frames for a guest without buffers for a limited time
// (nic.Sender). Outgoing frames wait in a queue for each destination; the queues are served in turn. A
// queue has room for 1,024 frames and 8 MiB of data, and for 64 frames of kinds that anybody can ask
// for (ICMP, ARP, ND, RST, DHCP); all queues have room for 32 MiB. No destination has more than 8 of
// the 32 frames in flight. Datagrams for a guest wait for room in its queue
// as long as a frame waits for a receiver. Datagrams for which a flow's sockets have no room wait:
// 2 MiB for a flow, 32 MiB for all flows plus 64 KiB for each. Datagrams lost for lack of room,
// also in a socket, are counted.
//
// The addresses of the gateway and of Hosts with a MAC are reserved on the switch: frames with
// these sources from other ports with a wire.Identity are dropped there. A lease belongs to its
// client: a DHCP message is accepted only if the client's MAC in it is the frame's source (unless
// it came in fragments), and its IP source is unspecified or, if a port with a wire.Identity has
// that MAC, bound to that port. Otherwise it is dropped, and counted as BadDHCP. An address that
// another port uses is not leased.
//
// A goroutine that holds a lock of the inbox's or outbox's queues, of leases, quotas, turns or
// tables of flows takes no other lock, with these exceptions: it may wake waiting goroutines; under
// a lane's lock it takes the inbox's; under the leases' lock it reads and changes the switch's
// address bindings. Under the lock of its backlog a flow writes to its socket without waiting,
// reports errors to the guest, and takes the locks of a budget and of the Gateway.
//
// Not implemented: DHCPv6; ICMP except echoes; IP multicast, and protocols other than TCP, UDP and
// ICMP; VLANs (a tag of VLAN 0 is ignored); guests' addresses outside the gateway's prefixes; two
// gateways with the same addresses on a switch. If guests' links have no wire.Identity, a guest
// that takes another's address or MAC is not detected. Guests may send router advertisements, and
// answer DHCP. TCP options, urgent data and path MTU discovery of TCP end here. With NAT the host's
// network is open to guests, as far as Policy allows; without NAT the gateway forwards no DNS question
// either.
package gateway
