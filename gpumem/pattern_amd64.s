#include "go_asm.h"
#include "textflag.h"

// Eight words of the pattern at a time: Z0 has seed + (i+1)*step of each word i, Z1 8*step, Z2 and Z3 mul1 and mul2.

// SETUP sets Z0 to Z3, from z in AX, which is the state before the first word. It overwrites AX.
#define SETUP \
	VPBROADCASTQ AX, Z0             \
	VPADDQ       ·steps(SB), Z0, Z0 \
	MOVQ         $const_step, AX    \
	SHLQ         $3, AX             \
	VPBROADCASTQ AX, Z1             \
	MOVQ         $const_mul1, AX    \
	VPBROADCASTQ AX, Z2             \
	MOVQ         $const_mul2, AX    \
	VPBROADCASTQ AX, Z3

// MIX writes mix64 of each word of Z0 to Z4, adds Z1 to Z0, and overwrites Z5.
#define MIX \
	VPSRLQ  $30, Z0, Z5 \
	VPXORQ  Z0, Z5, Z4  \
	VPMULLQ Z2, Z4, Z4  \
	VPSRLQ  $27, Z4, Z5 \
	VPXORQ  Z4, Z5, Z4  \
	VPMULLQ Z3, Z4, Z4  \
	VPSRLQ  $31, Z4, Z5 \
	VPXORQ  Z4, Z5, Z4  \
	VPADDQ  Z1, Z0, Z0

// func fill64(p *byte, n, z uint64)
TEXT ·fill64(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), CX
	MOVQ z+16(FP), AX
	SETUP

fill:
	MIX
	VMOVDQU64 Z4, (DI)
	ADDQ      $64, DI
	DECQ      CX
	JNZ       fill
	VZEROUPPER
	RET

// func match64(p *byte, n, z uint64) uint64
TEXT ·match64(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), CX
	MOVQ z+16(FP), AX
	SETUP

match:
	MIX
	VPCMPEQQ (DI), Z4, K1
	KMOVW    K1, AX
	CMPB     AX, $0xFF
	JNE      differs
	ADDQ     $64, DI
	DECQ     CX
	JNZ      match

differs:
	MOVQ n+8(FP), AX
	SUBQ CX, AX
	MOVQ AX, ret+24(FP)
	VZEROUPPER
	RET
