// Package memavail reports how much memory is available: the least of MemAvailable and what the limits of
// this process's control groups, version 1 or 2, leave. In a control group inactive page cache counts as unused.
package memavail
