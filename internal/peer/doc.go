// Package peer is what the transports vhost-user and vfio-user share: a device served to a peer at
// the other end of a Unix socket, which is not trusted.
//
// Serve runs a connection until the peer hangs up, the peer breaks the protocol, the context ends,
// or memory that the peer shares faults. Refusals bounds what a peer's bad requests write to the
// log. Decode and Append are the codec of payloads of fixed size. Package scm has the sockets.
package peer
