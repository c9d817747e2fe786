// Package plain is device memory TCP without a device: [Device] is a devmem.Device over the operating system's
// ordinary TCP sockets, [GPU] is ordinary memory in the role of a GPU's, and [Memory] a devmem.Memory over it,
// where the CPU does all work. It needs no privileges.
//
// Data that a flow rule steers to a queue with a binding arrives as fragments in pages of the bound buffer,
// with tokens; other data as linear bytes. A goroutine of each connection reads its socket as bytes arrive,
// some 1 MiB ahead of the user, to where the present rules steer them. A fragment may have bytes of several
// segments. If no page is free, the goroutine stops reading, and TCP's window closes; that counts in
// Stats.NICDrops. A send is complete when the peer has acknowledged it (SIOCOUTQ), but its memory may change
// when SendDevmem returns. SetRSS has no effect, and Stats counts no segments.
//
// The package is API (README, Stability).
package plain
