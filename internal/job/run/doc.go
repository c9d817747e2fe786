// Package run is `vnic run`: two guests, a transfer from a GPU of one guest to a GPU of the other in each
// mode, and the proof through which memory its bytes went. With rails there are several such transfers at the
// same time.
//
// The guests run in QEMU or in this process. This process tells the guests what to do, counts the connection on both
// NICs, and compares the destination with the bytes that the seed generates (verify.go). What a guest says about
// payload (linear_bytes) can make a run fail; no proof rests on it. One guest may run on another host: then this
// process counts and compares its own guest's end (half.go).
package run
