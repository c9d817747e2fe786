//go:build !amd64

package gpumem

var vector = false

func fill64(*byte, uint64, uint64) { panic("no vectors") }

func match64(*byte, uint64, uint64) uint64 { panic("no vectors") }
