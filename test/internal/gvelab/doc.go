// Package gvelab is a guest with two gVNICs of ours, wired to each other, for tests of what happens
// to a kernel and its gve driver: the first is under test, the second is moved to a network
// namespace of the guest's, where its peer lives. TCP streams run between them, and every byte is
// compared.
//
// Files that are not tests run in the guest, in its program (guest). The tests run on the host:
// they decide when things happen (bench.call), because some happen on the device's side: links that
// go down, a server that ends.
package gvelab
