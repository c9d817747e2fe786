// Package plain is device memory TCP without a device: [Device] is a devmem.Device over the operating system's ordinary
// TCP sockets, [GPU] is memory that passes for a GPU's, and [Memory] a devmem.Memory over it, which the CPU does all
// work for. Programs that are written against package devmem run with it on any machine, as any user: to develop them,
// and as the baseline that copies all payload.
//
// Semantics, limits and errno names are package devmem's: what is steered by a flow rule to a queue with a binding comes
// as fragments in pages of the bound buffer, with tokens; all else as linear bytes. What differs from a NIC:
//
//   - A goroutine of each connection reads its socket as bytes come, up to 1 MiB beyond what was received, and has the
//     operating system copy them to where the rules of that moment say: what waits in the socket is steered later than
//     it came. Fragments are as long as pages, whatever segments the bytes came in.
//   - Where no page is free it stops reading, and TCP's window closes; that counts as one of Stats.NICDrops.
//   - A send is complete when the peer has acknowledged it (SIOCOUTQ), and its memory is free to change when SendDevmem
//     returns: a binding is done then.
//   - SetRSS changes nothing, and Stats counts no segments.
//
// Cost: a goroutine a connection, and 64 KiB where it is not steered; a rule costs each read of each connection a look,
// and there are 1024 at most.
//
// The package is API (README, Stability).
package plain
