// Package labshow prints the output of `vnic lab show`: PCIe trees, of a lab or of this machine,
// and how each NIC reaches each GPU's memory.
package labshow
