// Package gpumem implements fake GPUs: their memory, the buffers of it that ports (guests' NICs) may use, and
// the engines that work on it.
//
// On the host, a GPU's memory is a sealed, fully allocated memfd, addressed as (GPU, offset). A port has a
// Registry of the buffers that its guest registered in that memory, and an Engine whose jobs copy and hash
// bytes of these buffers, so that a guest's CPU need not touch payload.
//
// In the guest, a Pool manages the 4 KiB pages of a buffer that is bound for receive: it gives them to the
// NIC's queues, and counts the references to the payload that the NIC wrote there. Tokens are the ids by which
// a socket's user returns its frags, each a piece {offset, length} of a page (Linux devmem TCP:
// net/core/devmem.c). Both access no GPU memory.
//
// FillPattern makes payload of 64-byte windows that do not occur by chance, and Audit finds these in memory
// where they should not be.
//
// The package is not API (README, Stability).
package gpumem

// PageSize is the unit of buffers, pools and bindings, in bytes.
const PageSize = 4096
