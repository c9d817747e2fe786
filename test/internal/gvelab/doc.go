// Package gvelab boots a guest with two of vnic's gVNICs, connected to each other, and tests its
// kernel and gve driver. The first NIC is under test. The second one, its peer, is in another
// network namespace of the guest. TCP streams run between them, and every byte is
// compared.
//
// Files that are not tests run in the guest, in its program (folder guest). The tests run on the host:
// they decide when things happen (bench.call), because some happen on the device's side: links that
// go down, a server that ends.
package gvelab
