// Package gateway is a machine of its own on a switch: a router for guests, made of gVisor's netstack.
//
// It is a wire.Port without a NIC. What the wire delivers is copied into memory of the process and
// given to netstack by one goroutine; what netstack sends is handed to the wire by another. It
// takes GSO packets and partial checksums, and sends them. Streams are not copied in between: netstack
// writes what a guest sends to the host's socket, and reads what it is to send from there. It
// offers, at addresses of its own:
//
//   - ARP, neighbor discovery and router advertisements (RFC 4861), ICMP echo of its own addresses;
//     a ping of any other goes there by NAT where the host allows that (net.ipv4.ping_group_range), else it gets ICMP's
//     "administratively prohibited", or without NAT "unreachable";
//   - DHCPv4 (RFC 2131): the address of each Host by its MAC, and a pool for all others;
//   - DNS over UDP and TCP: the Hosts' names and its own; with NAT, everything else goes to the host's resolvers;
//   - NAT, if asked: TCP connections and flows of datagrams (UDP, echoes) of guests end here, and go on as sockets of
//     the host, as far as Policy lets them. The gateway's own address stands for the host's loopback;
//   - forwards: sockets of the host that lead to a guest.
//
// Guests are hostile. What may come in is decided by addresses alone, in filter.go, before netstack
// sees it: netstack is promiscuous when there is NAT, and would answer for everybody. Where a guest
// gets to is judged once, where a socket is made for it, on the address and port that are dialled
// (Policy, policy.go): after reassembly, whatever name or headers led there. Without a flag it is
// not link-local addresses and clouds' metadata services, nor an IPv6 address with one of them
// in it; of the host's own ports Policy.HostPorts has the list, which is empty unless set. Judging
// costs a look at each prefix of the policy for each of at most 8 layers of the address, and a
// reading of the host's addresses a second at most. A guest's refusals make one line in the log a second.
//
// A flow of datagrams is known by the guest's address and port and the server's address, so that a server may answer
// from another port (TFTP); likewise a guest behind a forward. It lives for 2 minutes of silence (RFC 4787). The
// packets of a guest are forwarded as a router does: with one hop less, and their DF, which those of IPv6 have that it
// has not cut itself; what the host's sockets report (IP_RECVERR) and what has no hop left the guest hears by ICMP,
// and the flow and its source port stay. A port of the switch gets 50 errors at once, and 1,000 a second. Of ICMP
// guests may send echoes, and what neighbor discovery needs: errors would be believed, whoever's connections they are
// about.
//
// Queues, flows, leases and questions under way have bounds: 1,024 connections, 256 of which are asked for, for 10
// seconds each until the guest confirms it, as many that are closed and whose end a guest does not confirm
// (unfinished.go), 1,024 flows of datagrams, 128 questions that are forwarded, 32 connections for questions, and 256
// datagrams of 4 KiB that wait for each service. Of each, a port of the switch may have all that is free. When nothing
// is, one with less than its equal part takes one of the port that has most, the oldest; of datagrams' flows first one
// that had a question and an answer, then the one that is silent for longest; and any other is refused, but for flows
// of datagrams, of which it gives up one of its own (quota.go). Which port it is the wire says (wire.Packet.From), not
// the source address, so a guest that makes up addresses gets no more. What is refused, or makes room, is counted in
// Stats; finding it costs a look at each of the port's.
//
// Connections share 256 MiB for what they send and receive (budget.go): a port's first have 1 MiB each way, the next
// less, and from the 64th on, or when the rest is taken, 64 KiB. The sockets of all flows of datagrams share another
// 256 MiB of SO_RCVBUF, which the kernel doubles for what it keeps beside the bytes: a port's first have 2 MiB, and
// any 64 KiB. A flow has one socket that hears, and sends by up to 8, for each port of the server's, time to live and
// DF. Where there is no more, it closes the one that it opened first: there are 4,096 descriptors at most, but for
// those of flows that are just ending. 4 flows at a time open theirs, of the ports in turn (turns.go). Forwards' own
// sockets have 4 MiB each beside that.
//
// What comes waits for netstack in a queue for each port, which are served in turn by bytes (inbox.go): all have 512
// frames and 4 MiB in equal parts, each 32 frames and 128 KiB at least. A full one makes its senders wait (Busy), as it
// is always emptied; towards a guest without buffers the gateway waits as a NIC's worker does (nic.Sender). What waits
// for the wire has a queue for each destination, served in turn: 1,024 frames and 8 MiB of data, 64 frames of what
// anybody can ask for (ICMP, ARP, ND, RST, DHCP), 32 MiB in all; and no destination has more than 8 of the 32 frames
// under way. Datagrams for a guest wait for room there as long as a frame waits for a receiver. What a flow's sockets
// have no room for waits: 2 MiB, 32 MiB of all flows and 64 KiB of each. Datagrams that are lost for want of room, a
// socket's included, are counted.
//
// Its addresses, and those of Hosts, are reserved on the switch: what other ports with a
// wire.Identity send from them is dropped there. A lease is its client's: a DHCP message is heard if
// the client's MAC in it is the frame's source, and if that has the message's source address; what
// another port uses is not given out. Otherwise it is dropped, and counted as BadDHCP.
//
// Locks are leaves: the inbox's and the outbox's queues, the leases, quotas, turns, the tables of flows. Under them
// nothing is called but wakers, a lane's inbox, a flow's socket that is written to without waiting, and, under the
// leases', the switch's register of addresses.
//
// It does not know: DHCPv6; ICMP but for echoes; IP multicast, and protocols other than TCP, UDP and ICMP; VLANs (a tag
// of VLAN 0 is none); guests' addresses outside its prefixes; two gateways with the same addresses on a switch. Where
// guests' links have no wire.Identity, one that takes another's address or MAC is not found out. Guests may send router
// advertisements and answer DHCP themselves. TCP options, urgent data and path MTU discovery of TCP end here. To guests
// with NAT the network of the host is open, as far as Policy lets them; without NAT no question of a guest leaves
// either.
package gateway
