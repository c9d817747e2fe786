// Package memavail says how much memory can be had on this machine: what the kernel calls
// available, or what is left of the limits of this process's control groups, of either version.
package memavail
