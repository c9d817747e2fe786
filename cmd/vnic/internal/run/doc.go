// Package run is `vnic run`: two guests, one transfer from GPU to GPU in each mode, and the proof
// of where its bytes went.
//
// The lab is two GPUs, two NICs on one switch, and two guests, in QEMU or in this process. The host tells the
// guests what to do, counts the measured connection on both NICs, and digests the destination itself. What a
// guest says about payload (linear_bytes, fragments) is reported, and can make a run fail; no proof rests on it.
package run
