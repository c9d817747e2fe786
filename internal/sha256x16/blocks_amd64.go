package sha256x16

import "golang.org/x/sys/cpu"

// Available reports whether this machine has AVX-512 (F and BW).
var Available = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW

// blocks adds n blocks of 64 bytes to each lane: the blocks of lane i lie one after the other from p+i*stride on.
//
//go:noescape
func blocks(state *[8][Lanes]uint32, p *byte, stride, n uint64)
