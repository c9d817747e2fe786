// Package labshow prints PCIe trees, of a lab or of this machine, and how each NIC reaches each GPU's memory.
package labshow
