// Package lab builds an emulated network from a description: guests' NICs, all on one Ethernet switch, and GPUs.
//
// Open makes a Lab from a Description, and Lab.Close closes it. A Lab boots no guest and starts no QEMU: the caller
// passes a QEMU's connection to Port.Connected or Port.Serve, or makes a driver in this process by Port.InProcess. A
// port serves one connection at a time.
//
// A lab has at most MaxPorts ports and MaxGPUs GPUs; Open allocates all GPU memory.
//
// The package and the packages below it are not API (README, Stability).
package lab
