// Package sabotage lists deliberate faults for NICs of both device models (nic.Sabotage), at least
// one for each class of things that a NIC can do wrong. That a test suite passes on vnic proves
// something only if the suite fails on a vnic with such a fault. So each fault names the case of
// internal/nic/nictest, and of the kernel's own driver tests, that detects it; tests of the device
// models check the former (nictest.SeesSabotage).
//
// Faults are wrappers around parts of package nic, which replace them when queues are made. Faults
// in the marks of receive rings differ between device models, and the models implement them
// (nic.RingFault).
package sabotage
