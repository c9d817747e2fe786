// Package plain is device memory TCP without a device: [Device] is a devmem.Device over the operating system's ordinary
// TCP sockets, [GPU] is memory that passes for a GPU's, and [Memory] a devmem.Memory over it, which the CPU does all
// work for. Programs that are written against package devmem run with it on any machine, as any user: to develop them,
// and as the baseline that copies all payload.
//
// Semantics, limits and errno names are package devmem's: what is steered by a flow rule to a queue with a binding comes
// as fragments in pages of the bound buffer, with tokens; all else as linear bytes. What differs from a NIC: payload is
// copied from the socket by the CPU, when it is received and not before; no page is in use until then.
//
// The package is API (README, Stability).
package plain
