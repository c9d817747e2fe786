// Package guests boots the guests of a command, in QEMU or in this process, and has each take its NICs: a
// transfer.Node for every NIC that is used, which does what the command asks for.
//
// What is common to all commands with guests is here: what they boot from, how they are started behind the sandbox,
// which of a guest's NICs is which, how much of a GPU's memory a guest can use and where it is, and who is to blame
// when one ends. `vnic run` has ends of its own, made of these parts; a [Set] is for commands that ask every guest
// the same.
package guests
