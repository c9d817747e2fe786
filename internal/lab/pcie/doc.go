// Package pcie models a machine's PCIe tree for peer-to-peer DMA between devices: sockets with
// their host bridges, switches, endpoints, the links between them, and Linux's rule for which
// endpoint may address which.
//
// New checks and completes a Tree, which is immutable afterwards: any goroutine may use it. Package
// host reads the tree of the machine on which the program runs.
//
// Paths follow drivers/pci/p2pdma.c, calc_map_type_and_dist. Distances have the names of nvidia-smi
// topo -m: PIX, PXB, PHB, NODE, SYS. Rates follow the PCI Express Base Specification 6.0, section
// 4.2.
//
// The package is not API (README, Stability).
//
// New takes time and memory proportional to the number of nodes times the depth, which MaxDepth
// bounds; Path takes time proportional to the depth.
package pcie
