#include "textflag.h"

// Sixteen SHA-256 computations, one in each 32-bit lane of the registers. In the rounds, Z0 to Z7 hold the working
// variables a to h, Z16 to Z31 the last sixteen words of the message schedule (FIPS 180-4, 6.2.2), and Z8 to Z13 are
// scratch registers.

// ROUND is one round, with word w0 of the message schedule. It leaves the new e in d and the new a in h: the
// next round has the same registers in another order. off is the offset of the round's constant from R9, in
// bytes.
#define ROUND(a, b, c, d, e, f, g, h, off, w0, w1, w9, w14) \
	VPRORD      $6, e, Z8           \
	VPRORD      $11, e, Z9          \
	VPRORD      $25, e, Z10         \
	VPTERNLOGD  $0x96, Z9, Z10, Z8  \
	VMOVDQA32   e, Z9               \
	VPTERNLOGD  $0xCA, g, f, Z9     \
	VPADDD.BCST off(R9), w0, Z10    \
	VPADDD      Z8, h, h            \
	VPADDD      Z9, Z10, Z10        \
	VPADDD      Z10, h, h           \
	VPADDD      h, d, d             \
	VPRORD      $2, a, Z8           \
	VPRORD      $13, a, Z9          \
	VPRORD      $22, a, Z10         \
	VPTERNLOGD  $0x96, Z9, Z10, Z8  \
	VMOVDQA32   a, Z9               \
	VPTERNLOGD  $0xE8, c, b, Z9     \
	VPADDD      Z9, Z8, Z8          \
	VPADDD      Z8, h, h

// SCHEDULE computes word t of the message schedule from words t-16 (w0), t-15 (w1), t-7 (w9) and t-2 (w14),
// into w0.
#define SCHEDULE(w0, w1, w9, w14) \
	VPRORD     $7, w1, Z11          \
	VPRORD     $18, w1, Z12         \
	VPSRLD     $3, w1, Z13          \
	VPTERNLOGD $0x96, Z12, Z13, Z11 \
	VPADDD     w9, w0, w0           \
	VPADDD     Z11, w0, w0          \
	VPRORD     $17, w14, Z11        \
	VPRORD     $19, w14, Z12        \
	VPSRLD     $10, w14, Z13        \
	VPTERNLOGD $0x96, Z12, Z13, Z11 \
	VPADDD     Z11, w0, w0

#define NEXT(a, b, c, d, e, f, g, h, off, w0, w1, w9, w14) \
	SCHEDULE(w0, w1, w9, w14) \
	ROUND(a, b, c, d, e, f, g, h, off, w0, w1, w9, w14)

#define SIXTEEN(STEP) \
	STEP(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, 0, Z16, Z17, Z25, Z30)  \
	STEP(Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z6, 4, Z17, Z18, Z26, Z31)  \
	STEP(Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z5, 8, Z18, Z19, Z27, Z16)  \
	STEP(Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z4, 12, Z19, Z20, Z28, Z17) \
	STEP(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, 16, Z20, Z21, Z29, Z18) \
	STEP(Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z2, 20, Z21, Z22, Z30, Z19) \
	STEP(Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z1, 24, Z22, Z23, Z31, Z20) \
	STEP(Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z0, 28, Z23, Z24, Z16, Z21) \
	STEP(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, 32, Z24, Z25, Z17, Z22) \
	STEP(Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z6, 36, Z25, Z26, Z18, Z23) \
	STEP(Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z5, 40, Z26, Z27, Z19, Z24) \
	STEP(Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z4, 44, Z27, Z28, Z20, Z25) \
	STEP(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, 48, Z28, Z29, Z21, Z26) \
	STEP(Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z2, 52, Z29, Z30, Z22, Z27) \
	STEP(Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z1, 56, Z30, Z31, Z23, Z28) \
	STEP(Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z0, 60, Z31, Z16, Z24, Z29)

// SUM adds a working variable (w) to its word of the state, in memory.
#define SUM(word, w) \
	VPADDD    word, w, w \
	VMOVDQU32 w, word

// LOAD reads 64 bytes of a lane at R10 as big-endian words, with the shuffle in Z0, and moves R10 to the next lane.
#define LOAD(w) \
	VMOVDQU32 (R10), w  \
	VPSHUFB   Z0, w, w  \
	ADDQ      BX, R10

// PAIRS and QUADS transpose words within groups of four lanes, JOIN across the groups: then register 16+i has word i of
// all lanes.
#define PAIRS(r0, r1, t0, t1) \
	VPUNPCKLDQ r1, r0, t0 \
	VPUNPCKHDQ r1, r0, t1

#define QUADS(t0, t1, t2, t3, r0, r1, r2, r3) \
	VPUNPCKLQDQ t2, t0, r0 \
	VPUNPCKHQDQ t2, t0, r1 \
	VPUNPCKLQDQ t3, t1, r2 \
	VPUNPCKHQDQ t3, t1, r3

#define JOIN(r0, r4, r8, r12) \
	VSHUFI32X4 $0x88, r4, r0, Z0  \
	VSHUFI32X4 $0xDD, r4, r0, Z1  \
	VSHUFI32X4 $0x88, r12, r8, Z2 \
	VSHUFI32X4 $0xDD, r12, r8, Z3 \
	VSHUFI32X4 $0x88, Z2, Z0, r0  \
	VSHUFI32X4 $0xDD, Z2, Z0, r8  \
	VSHUFI32X4 $0x88, Z3, Z1, r4  \
	VSHUFI32X4 $0xDD, Z3, Z1, r12

// func blocks(state *[8][16]uint32, p *byte, stride, n uint64)
TEXT ·blocks(SB), NOSPLIT, $0-32
	MOVQ state+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ stride+16(FP), BX
	MOVQ n+24(FP), CX
	TESTQ CX, CX
	JZ   done

block:
	VMOVDQU32 ·bigEndian(SB), Z0
	MOVQ      SI, R10
	LOAD(Z16)
	LOAD(Z17)
	LOAD(Z18)
	LOAD(Z19)
	LOAD(Z20)
	LOAD(Z21)
	LOAD(Z22)
	LOAD(Z23)
	LOAD(Z24)
	LOAD(Z25)
	LOAD(Z26)
	LOAD(Z27)
	LOAD(Z28)
	LOAD(Z29)
	LOAD(Z30)
	LOAD(Z31)

	PAIRS(Z16, Z17, Z0, Z1)
	PAIRS(Z18, Z19, Z2, Z3)
	PAIRS(Z20, Z21, Z4, Z5)
	PAIRS(Z22, Z23, Z6, Z7)
	PAIRS(Z24, Z25, Z8, Z9)
	PAIRS(Z26, Z27, Z10, Z11)
	PAIRS(Z28, Z29, Z12, Z13)
	PAIRS(Z30, Z31, Z14, Z15)
	QUADS(Z0, Z1, Z2, Z3, Z16, Z17, Z18, Z19)
	QUADS(Z4, Z5, Z6, Z7, Z20, Z21, Z22, Z23)
	QUADS(Z8, Z9, Z10, Z11, Z24, Z25, Z26, Z27)
	QUADS(Z12, Z13, Z14, Z15, Z28, Z29, Z30, Z31)
	JOIN(Z16, Z20, Z24, Z28)
	JOIN(Z17, Z21, Z25, Z29)
	JOIN(Z18, Z22, Z26, Z30)
	JOIN(Z19, Z23, Z27, Z31)

	VMOVDQU32 0(DI), Z0
	VMOVDQU32 64(DI), Z1
	VMOVDQU32 128(DI), Z2
	VMOVDQU32 192(DI), Z3
	VMOVDQU32 256(DI), Z4
	VMOVDQU32 320(DI), Z5
	VMOVDQU32 384(DI), Z6
	VMOVDQU32 448(DI), Z7
	LEAQ ·constants(SB), R9

	SIXTEEN(ROUND)
	MOVQ $3, R8

rounds:
	ADDQ $64, R9
	SIXTEEN(NEXT)
	DECQ R8
	JNZ  rounds

	SUM(0(DI), Z0)
	SUM(64(DI), Z1)
	SUM(128(DI), Z2)
	SUM(192(DI), Z3)
	SUM(256(DI), Z4)
	SUM(320(DI), Z5)
	SUM(384(DI), Z6)
	SUM(448(DI), Z7)
	ADDQ $64, SI
	DECQ CX
	JNZ  block

done:
	VZEROUPPER
	RET
