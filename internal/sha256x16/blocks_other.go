//go:build !amd64

package sha256x16

// Available is false: the assembly is for amd64.
const Available = false

func blocks(*[8][Lanes]uint32, *byte, uint64, uint64) { panic("sha256x16: not available") }
