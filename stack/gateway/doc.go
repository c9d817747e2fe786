// Package gateway is a machine of its own on a switch: a router for guests, made of gVisor's netstack.
//
// It is a wire.Port without a NIC. What the wire delivers is copied into memory of the process and
// given to netstack by one goroutine; what netstack sends is handed to the wire by another. It
// takes GSO packets and partial checksums, and sends them. Streams are not copied in between: netstack
// writes what a guest sends to the host's socket, and reads what it is to send from there. It
// offers, at addresses of its own:
//
//   - ARP, neighbor discovery and router advertisements (RFC 4861), ICMP echo of its own addresses;
//     a ping of any other gets ICMP's "administratively prohibited", or without NAT "unreachable";
//   - DHCPv4 (RFC 2131): the address of each Host by its MAC, and a pool for all others;
//   - DNS over UDP and TCP: the Hosts' names and its own; with NAT, everything else goes to the host's resolvers;
//   - NAT, if asked: TCP connections and UDP flows of guests end here, and go on as sockets of the
//     host, as far as Policy lets them. The gateway's own address stands for the host's loopback;
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
// Queues, flows, leases and questions under way have bounds. Of flows, pending connections, datagrams that
// wait for a service and questions that are forwarded, a port of the switch has a half or a quarter at
// most; which port it is the wire says (wire.Packet.From), not the source address, so a guest that
// makes up addresses gets no more (quota.go). So it is of connections that are closed
// and that a guest does not confirm (unfinished.go). All datagrams that wait are 256 of 4 KiB for each service.
// What is beyond the bounds is refused or dropped, and counted in Stats. A full queue towards netstack
// makes senders wait (Busy), as it is always emptied; towards a guest without buffers the gateway waits
// as a NIC's worker does (nic.Sender). What waits for the wire has a queue for each destination, served
// in turn: 1,024 frames and 8 MiB of data, 64 frames of what anybody can ask for (ICMP, ARP, ND, RST, DHCP), 32 MiB
// in all; and no destination has more than 8 of the 32 frames under way.
//
// Its addresses, and those of Hosts, are reserved on the switch: what other ports with a
// wire.Identity send from them is dropped there. A lease is its client's: a DHCP message is heard if
// the client's MAC in it is the frame's source, and if that has the message's source address; what
// another port uses is not given out. Otherwise it is dropped, and counted as BadDHCP.
//
// Locks are leaves: the inbox's and the outbox's queues, the leases, quotas, the UDP forwards'
// tables. Under them nothing is called but wakers, a quota, what makes a socket in netstack, and,
// under the leases', the switch's register of addresses.
//
// It does not know: DHCPv6; ICMP beyond its own addresses (guests cannot ping the world, and are told so); IP
// multicast, and protocols other than TCP and UDP; VLANs; guests' addresses outside its prefixes;
// two gateways with the same addresses on a switch. Where guests' links have no wire.Identity, one
// that takes another's address or MAC is not found out. Guests may send router advertisements and
// answer DHCP themselves. TCP options, urgent data and path MTU discovery end here. A host's ICMP error
// ends a UDP flow, and the guest is not told. To guests with NAT the network of the host is open,
// as far as Policy lets them; without NAT no question of a guest leaves either.
package gateway
