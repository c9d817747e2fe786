// Package lab is what `vnic run`, `vnic boot` and `vnic serve` have in common: some NICs of one personality, each with a GPU of
// its own if wanted, on one switch, perhaps with a gateway. It is the only package of the command that knows how the personalities
// differ on the host.
//
// A Lab is made in one go from Options and taken down in one go by Close, which leaves nothing: no goroutine, no descriptor, no
// memory. It has no guests: who has a connection to a QEMU, or to a driver in this process, gives it to Port.Connected or
// Port.Serve. A port serves one connection at a time, and any number one after the other.
package lab
