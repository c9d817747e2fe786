// Package sabotage has the faults that a NIC of either device model can be made with (nic.Sabotage): one at least of
// each class of things that a NIC can do wrong. A suite that passes on vnic says something only if it fails on a vnic
// with such a fault; of each is said which case of internal/nic/nictest and which of the kernel's own driver tests see
// it, and the tests of the device models hold the former (nictest.SeesSabotage).
//
// Faults are wrappers around what package nic calls, put in its place as queues are made. What differs between device
// models, the marks in their rings, they put in place themselves (nic.RingFault).
package sabotage
