// Package proc starts processes that do not outlive this one.
//
// A Child runs until it ends, or is ended: for example a QEMU. A Command is a tool that runs to its
// end: apt-get, dpkg-deb. The kernel kills both when this process dies, for whatever reason; Sweep
// then removes a directory. Up to a few KiB of a program's output are kept, and made safe for a
// terminal before they are shown.
//
// The package depends on none of the programs.
package proc
