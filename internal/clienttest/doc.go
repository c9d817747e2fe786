// Package clienttest runs the clients of package devmem (collective, loader, block/nbd, block/nvmetcp) over
// Linux's own device memory TCP (devmem/kernel), with a devmem.Memory over a mapped dma-buf
// (plain.MapMemory).
//
// The command devmem-clients calls this package, on machines without Go. Each run does one job: one of these clients,
// the conformance suite of devmem.Memory, or an ordinary download for comparison. After success it prints the result as
// JSON.
//
// The package is not API (README, Stability).
package clienttest
