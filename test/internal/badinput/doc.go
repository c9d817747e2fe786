// Package badinput is the table of bad inputs: what a hostile frontend or guest sends, what it may
// cost, and the answer.
//
// Each row is run against a real `vnic serve`, in a separate process, by a client that controls every byte that it
// sends. Meanwhile two innocent guests on other ports of the same switch send each other one frame after another. After
// the row they must still do so. What the row has cost the process in memory, descriptors, processor time and log lines
// is measured from outside (proc(5)) and compared with the row's bounds. The longest time of an
// innocent frame is compared with the longest time without a row. The rows are data: table_test.go has vhost-user, its
// rings, frames and broadcasts to the gateway; guesttable_test.go has the control channel and more of the gateway;
// gvetable_test.go has vfio-user, the gVNIC's registers, admin queue and rings; files_test.go has files that need their
// own mounts. For a class without a row at a layer norow_test.go has the reason. Rows of gVNICs have a server and
// innocent guests of that model. A row measures the cost of a class at a layer. The packages vhostuser, vfiouser,
// virtq, internal/nic/virtio, internal/nic/gve and internal/control test that inputs of all shapes are refused. Most
// rows repeat their input about a thousand times. A row whose input has the maximum of everything (the largest ring,
// the most regions or mappings, the longest chains) sends it less often.
package badinput
