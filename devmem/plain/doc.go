// Package plain is device memory TCP without a device: a [Device] uses the operating system's TCP sockets, a
// [GPU] is ordinary memory, and the CPU does the work of [Memory]. It needs no privileges.
//
// Data that a flow rule steers to a queue with a binding arrives as fragments in pages of the bound buffer, with
// tokens; other data as linear bytes. A goroutine of each connection reads its socket, up to about 1 MiB ahead
// of the user. A fragment may have bytes of several segments. If no page is free, the goroutine stops reading,
// which counts in Stats.NICDrops. A send is complete when the peer has acknowledged it (SIOCOUTQ), but its
// memory may change when SendDevmem returns. SetRSS has no effect, and Stats counts no segments.
//
// The package is API (README, Stability).
package plain
