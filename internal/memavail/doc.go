// Package memavail reports how much memory is available on this machine: the smallest of the
// kernel's estimate (MemAvailable) and of what each memory limit of this process's control groups,
// version 1 or 2, leaves unused; inactive page cache counts as unused.
package memavail
