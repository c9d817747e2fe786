// Package run is `vnic run`: two guests, a transfer from a GPU of one guest to a GPU of the other in each mode, and the
// proof through which memory its bytes went. With rails there are several such transfers at the same time.
//
// Each guest runs in QEMU or in this process. Without rails each has one GPU and one NIC, on a common switch. This
// process tells the guests what to do, counts the measured connection on both NICs, and compares each byte of the
// destination with the byte that the seed generates. It also compares digests of source and destination (verify.go).
// The report has what a guest says about payload (linear_bytes, fragments). These figures can make a run fail; no proof
// rests on them.
package run
