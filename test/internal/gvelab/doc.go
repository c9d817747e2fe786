// Package gvelab boots a guest with two of vnic's gVNICs, connected to each other, and tests its kernel and gve
// driver. The first NIC is under test; its peer is in another network namespace of the guest.
//
// Files that are not tests run in the guest (folder guest).
package gvelab
