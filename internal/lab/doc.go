// Package lab builds an emulated network from a description: guests' NICs and GPUs, all on one switch.
//
// Open makes a Lab from a Description, and Lab.Close closes it. A Lab boots no guest and starts no QEMU: the
// caller passes the connection of a driver, in QEMU or in this process, to Port.Connected or Port.Serve. A
// port serves one connection at a time.
//
// A lab has at most MaxPorts ports and MaxGPUs GPUs; Open allocates all GPU memory.
//
// The package and those below it are not API (README, Stability).
package lab
