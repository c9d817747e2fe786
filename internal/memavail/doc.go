// Package memavail reports how much memory is available on this machine: the kernel's value, or the
// rest of the limits of this process's control groups, of either version.
package memavail
