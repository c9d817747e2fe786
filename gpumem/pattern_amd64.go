package gpumem

import "golang.org/x/sys/cpu"

// vector is true if the CPU has AVX-512 (F and DQ), with which fill64 and match64 compute eight words at a time.
var vector = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ

// steps[i] is (i+1)*step: what to add to the state before eight words, to get the state of word i of the eight.
var steps = func() (s [8]uint64) { //nolint:unused // pattern_amd64.s reads it
	for i := range s {
		s[i] = uint64(i+1) * (step & (1<<64 - 1))
	}
	return s
}()

// fill64 writes n*64 bytes of the pattern, n > 0, to p. z, the state before the first word i, is seed + i*step.
//
//go:noescape
func fill64(p *byte, n, z uint64)

// match64 compares n > 0 blocks of 64 bytes at p with the pattern, and returns how many come before the first that
// differs, or n. z is as for fill64.
//
//go:noescape
func match64(p *byte, n, z uint64) uint64
