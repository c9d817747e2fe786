// Package console runs a program in a guest under a QEMU that vnic did not start, in an image of `vnic image
// build`. It configures the network by DHCP, and prints how the program ended (agent.Alone).
package console
