// Package clienttest runs the clients of package devmem (collective, loader, block/nbd, block/nvmetcp) over
// Linux's own device memory TCP (devmem/kernel), with a devmem.Memory over a mapped dma-buf
// (plain.MapMemory).
//
// It is a program (devmem-clients), for machines without Go. Each call does one job, and prints the result as
// JSON.
//
// The package is not API (README, Stability).
package clienttest
