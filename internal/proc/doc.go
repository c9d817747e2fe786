// Package proc starts processes that do not outlive this one.
//
// A Child runs until it ends, or is ended: a QEMU. A Command is a tool that is run to its end:
// apt-get, dpkg-deb. Either is killed by the kernel when this process dies, however it does; Sweep
// removes what a killed process leaves in a directory. What a program said is kept up to a few KiB,
// and made fit for a terminal before it is shown.
//
// The package knows none of the programs.
package proc
