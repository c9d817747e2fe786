// Package pcie is a machine's PCIe tree, as devices see it that reach each other's memory: sockets with their host
// bridges, switches, endpoints, the links between them, and Linux's rule of which endpoint may address which.
//
// A Tree is made whole by New, which refuses what is no tree, and does not change afterwards: any goroutine may ask it.
// Host reads the tree of the machine that the program runs on.
//
// Paths follow drivers/pci/p2pdma.c, calc_map_type_and_dist. What is between two endpoints has the words of
// nvidia-smi topo -m: PIX, PXB, PHB, NODE, SYS. Rates follow the PCI Express Base Specification 6.0, section 4.2.
//
// The package is not API (README, Stability).
//
// New takes time and memory of the number of nodes times the depth, of which MaxDepth is the bound; Path takes time of
// the depth.
package pcie
