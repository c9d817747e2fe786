// Package run is `vnic run`: two guests, one transfer from GPU to GPU in each mode, and the proof
// of where its bytes went.
//
// The lab is two GPUs, two NICs on one switch, and two guests, in QEMU or in this process. The host tells the
// guests what to do, counts the measured connection on both NICs, and compares each byte of the destination with what
// the seed says was sent. The engine of each GPU digests its side, apart (verify.go); both digests must agree. What a
// guest says about payload (linear_bytes, fragments) is reported, and can make a run fail; no proof rests on it.
package run
