// Package clienttest runs the clients of package devmem (collective, loader, block/nbd, block/nvmetcp) over Linux's own
// device memory TCP (devmem/kernel), with a devmem.Memory that is a mapped dma-buf (plain.MapMemory). That is all it
// knows: no NIC, no driver and no guest of ours. What it runs on is any machine whose interface has device memory TCP.
//
// It is a program (devmem-clients) rather than a Go test, for guests and test machines that have no Go. Each call does
// one job, with GPU memory of its own, and says what came of it in JSON.
//
// The package is not API (README, Stability).
package clienttest
