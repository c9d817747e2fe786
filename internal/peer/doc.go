// Package peer has common parts of packages that serve an untrusted peer at the other end of a Unix socket: vhostuser,
// vfiouser and broker.
package peer
