// Package plain is device memory TCP without a device: [Device] is a devmem.Device over the
// operating system's ordinary TCP sockets, [GPU] is ordinary memory in the role of a GPU's, and
// [Memory] a devmem.Memory over it, where the CPU does all work. Programs written against package
// devmem run with it on any machine, as any user: to develop them, and as a baseline that copies
// all payload.
//
// Semantics, limits and errno names are package devmem's: data that a flow rule steers to a queue
// with a binding arrives as fragments in pages of the bound buffer, with tokens; all other data as
// linear bytes. Differences from a NIC:
//
//   - A goroutine of each connection reads its socket as bytes arrive, some 1 MiB ahead of the user, and lets
//     the operating system copy them to where the present rules steer them: data that waits in the socket is
//     steered later than it arrived. A fragment may have bytes of several segments.
//   - If no page is free, the goroutine stops reading, and TCP's window closes; that counts as one of
//     Stats.NICDrops.
//   - A send is complete when the peer has acknowledged it (SIOCOUTQ). Its memory may change when SendDevmem
//     returns, so a closed binding is done then.
//   - SetRSS has no effect, and Stats counts no segments.
//
// Cost: a goroutine per connection, and for a connection that is not steered some 1 MiB of queued
// bytes at most; each read of a connection checks each rule (at most 1024).
//
// The package is API (README, Stability).
package plain
