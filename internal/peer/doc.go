// Package peer serves a device to an untrusted peer at the other end of a Unix socket, for vhost-user and
// vfio-user.
package peer
