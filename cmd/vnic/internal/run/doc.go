// Package run is `vnic run`: two guests, one transfer from GPU to GPU in each mode, and the proof of where its bytes went.
//
// A lab is the emulated world: two GPUs, two NICs on one switch, and two guests, in QEMU or in this process. The host
// orders the guests about, meters the measured connection on both NICs, digests the destination itself, and believes
// nothing that a guest says about payload.
package run
