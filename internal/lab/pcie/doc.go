// Package pcie models a machine's PCIe tree for peer-to-peer DMA: sockets with their host bridges, switches,
// endpoints, links, and Linux's rule for which endpoint may address which.
//
// New checks the nodes and makes a Tree, which is immutable: any goroutine may use it. Package host reads this
// machine's tree.
//
// Paths follow drivers/pci/p2pdma.c, calc_map_type_and_dist. Distances have the names of nvidia-smi
// topo -m: PIX, PXB, PHB, NODE, SYS. Rates follow the PCI Express Base Specification 6.0 (Link.Rate).
//
// The package is not API (README, Stability).
//
// New takes time proportional to the number of nodes times MaxDepth, Path to the depth.
package pcie
