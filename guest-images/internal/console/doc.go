// Package console is what a guest of vnic does by itself when it runs under a QEMU that is not
// ours, as `vnic image build` makes them: it brings its network up by DHCP, runs a program on its
// console (agent.Alone) and says how that ended. Process 1 starts it as agent.ConsoleApplet, and
// powers the guest off after it.
//
// The program has in its environment what package guest and the tool devmem want: VNIC_DEVICE, and
// as VNIC_ADDR an address of its own in the network, as the kernel loses the addresses that a
// devmem program has.
package console
