//go:build !amd64

package sha256x16

// Available reports whether this machine has AVX-512.
const Available = false

func blocks(*[8][Lanes]uint32, *byte, uint64, uint64) { panic("sha256x16: not available") }
