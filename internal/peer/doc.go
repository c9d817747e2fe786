// Package peer is shared by the transports vhost-user and vfio-user: it serves a device to a peer
// at the other end of a Unix socket. The peer is not trusted.
//
// Serve runs a connection until the peer hangs up or breaks the protocol, the context ends, or
// memory that the peer shares faults. Refusals limits how many log lines a peer's bad requests
// cause. Decode and Append are the codec of fixed-size payloads. Package scm has the sockets.
package peer
