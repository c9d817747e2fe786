// Package peer serves a device to an untrusted peer at the other end of a Unix socket. The transports
// vhost-user and vfio-user share it.
//
// Serve runs a connection. Refusals limits how many log lines a peer's bad requests cause. Decode and Append
// are the codec of fixed-size payloads.
package peer
