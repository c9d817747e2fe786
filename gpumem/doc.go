// Package gpumem implements fake GPUs: their memory, the buffers of it that ports (guests' NICs) may use, and
// the engines that work on it.
//
// On the host, a GPU's memory is a sealed, fully allocated memfd, addressed as (GPU, offset). A port has a
// Registry of its guest's buffers, and an Engine whose jobs fill, copy, add and hash their bytes.
//
// In the guest, a Pool manages the 4 KiB pages of a buffer that is bound for receive, and counts the
// references to each page. Tokens are the numbers by which a socket's user returns pages (Linux devmem TCP:
// Documentation/networking/devmem.rst).
//
// FillPattern makes payload that does not occur by chance, for Audit to find.
//
// The package is not API (README, Stability).
package gpumem

// PageSize is the unit of buffers, pools and bindings, in bytes.
const PageSize = 4096
