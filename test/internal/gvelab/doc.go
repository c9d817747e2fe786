// Package gvelab is a guest with two gVNICs of ours, wired to each other, for tests of what happens
// to a kernel and its gve driver: the first is under test, the second is moved to a network
// namespace of the guest's, where its peer lives. TCP streams run between them, and every byte is
// compared.
//
// What is not a test is the guest's side, for its program (guest). The tests are the host's: they
// say when things happen (bench.call), as they also have the device's end of them: links that go
// down, a server that goes away.
package gvelab
