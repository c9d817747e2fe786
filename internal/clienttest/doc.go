// Package clienttest runs the clients of package devmem (collective, loader, block/nbd,
// block/nvmetcp) over Linux's own device memory TCP (devmem/kernel), with a devmem.Memory over a
// mapped dma-buf (plain.MapMemory). It uses no NIC, driver or guest of vnic's: it runs on any
// machine that has an interface with device memory TCP.
//
// It is a program (devmem-clients) and not a Go test, for guests and test machines without Go. Each
// call does one job, with its own GPU memory, and prints the result as JSON.
//
// The package is not API (README, Stability).
package clienttest
