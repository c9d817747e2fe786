// Package proc starts processes that do not outlive this one, apart from Sweep's.
//
// A Child runs until it ends or Child.End ends it: for example a QEMU. A Command is a tool that
// runs to its end: apt-get, dpkg-deb. The kernel kills both when this process dies, for whatever
// reason; Sweep then removes a directory. The package keeps the last few KiB of a tool's standard
// error, and makes text for error messages safe for a terminal.
package proc
