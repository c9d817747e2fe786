// Package gvelab is a guest with two gVNICs of ours, wired to each other, for acceptance tests of what happens to a kernel
// and its gve driver: the first is under test, the second is moved to a network namespace of the guest's, where its peer
// lives. TCP streams run between them, and every byte is compared.
//
// One program is both sides: on the host it boots itself as the guest's program (Main decides). The host side says when
// things happen (Lab.Call), as it also has the device's end of them: links that go down, a server that goes away.
package gvelab
