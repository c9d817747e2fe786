// Package console runs a guest's program when the guest runs under a QEMU that vnic did not start, in an image
// of `vnic image build`. It configures the network by DHCP, runs a program on the console (agent.Alone) and
// prints how the program ended.
//
// The program's environment has VNIC_DEVICE, and, if the guest's address is of a vnic network, in VNIC_ADDR a
// separate address in that network.
package console
