// Package lab builds an emulated network from a description: guests' NICs, of either device model,
// and GPUs, all on one switch, perhaps with a gateway, captures and impaired links. `vnic run`,
// `boot` and `serve` use it, and so do tests of packages above it.
//
// A Description is a plain value, made from flags or by a test. Open makes a Lab from it, and
// Lab.Close closes the lab and leaves no goroutine, descriptor or memory behind. A Lab boots no
// guest and starts no QEMU: package internal/machine does that. The caller passes a connection to a
// QEMU, or to a driver in this process, to Port.Connected or Port.Serve; Port.InProcess makes such
// a driver. A port serves one connection at a time, and any number one after the other.
//
// A lab has at most MaxPorts ports and MaxGPUs GPUs; Open allocates all GPU memory. The packages of
// the lab's parts document the other bounds.
//
// The package and those below it are not API (README, Stability).
package lab
