//go:build !amd64

package gpumem

// vector is set if this machine can compute eight words of the pattern at a time.
var vector = false

func fill64(*byte, uint64, uint64) { panic("no vectors") }

func match64(*byte, uint64, uint64) uint64 { panic("no vectors") }
