//go:build !amd64

package sha256x16

// Available says whether this machine can.
const Available = false

func blocks(*[8][Lanes]uint32, *byte, uint64, uint64) { panic("sha256x16: not available") }
