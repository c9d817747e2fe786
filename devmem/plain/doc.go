// Package plain is device memory TCP without a device: a [Device] uses the operating system's TCP sockets, a
// [GPU] is ordinary memory, and the CPU does the work of [Memory]. It needs no privileges.
//
// A goroutine of each connection reads its socket, up to about 1 MiB ahead of the user. If a flow rule then steers
// the connection to a queue with a binding, RecvDevmem returns the data as fragments in pages of the bound buffer,
// with tokens; other data as linear bytes. A fragment may have bytes of several segments. While the binding has no
// free page, the goroutine does not read; each such wait adds 1 to Stats.NICDrops. ReadCompletion reports a send when
// the peer has acknowledged it (SIOCOUTQ), but its memory may change when SendDevmem returns. SetRSS steers nothing,
// and Stats counts no segments.
//
// The package is API (README, Stability).
package plain
