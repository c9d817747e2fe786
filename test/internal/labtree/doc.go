// Package labtree compares the PCIe trees that guests' kernels find with the labs' descriptions.
package labtree

import "vnic.dev/vnic/internal/lab/pcie"

// PageSize is the size of the pages of a GPU's memory. The test writes the GPU's number at the beginning of each page.
const PageSize = 4096

// Seen is what a guest's kernel has found.
type Seen struct {
	Nodes []pcie.Node
	NICs  map[string]string // names of endpoints (PCI addresses), by MAC
	GPUs  map[uint64]string // names of endpoints, by the number at the beginning of most pages
	Ports map[string]Port   // the port above each endpoint, by the endpoint's name
	NUMA  []int             // numbers of NUMA nodes
}

// Port has a port's link as sysfs shows it, such as "16.0 GT/s PCIe x16".
type Port struct {
	Current string // negotiated by port and device
	Max     string // the port's maximum
}
