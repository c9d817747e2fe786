// Package badinput is the table of bad inputs: what a hostile frontend or guest sends, what it may
// cost, and the answer.
//
// Each row goes to a real `vnic serve`, a process of its own, from a client that has no part of this module between
// itself and the socket that it does not misuse. Beside it, two innocent guests on other ports of the same switch send
// each other one frame after another. After the row they must still do so, and the process must be as it was: memory,
// descriptors, processor time and lines of log are measured from outside (proc(5)) and held to the row's bounds. How
// long an innocent frame took at worst is held to a bound as well, in terms of what it takes while nothing bad happens.
//
// Classes and layers are those of docs/threat-model.md. The rows are data: those of vhost-user, its rings and of frames
// in table_test.go; of the control channel and the gateway in guesttable_test.go; of vfio-user, the gVNIC's registers,
// admin queue and rings in gvetable_test.go; and of files that need mounts of their own in files_test.go. A cell
// without a row says why (norow_test.go). Rows of gVNICs have a server and innocent guests of that model.
//
// A row stands for a class at a layer, by what it costs a process. That inputs of all shapes are refused is tested where
// they are: packages vhostuser, vfiouser, virtq, internal/nic/virtio, internal/nic/gve and control have tables of
// hostile peers.
//
// A row does what it does a thousand times, or once where it has the most of everything: the largest ring, the most
// regions or mappings, the longest chains.
package badinput
