// Package sabotage lists deliberate faults for NICs (nic.Sabotage), by class. A test suite that passes on vnic
// proves something only if it fails on a vnic with such a fault. So each fault names a case of
// internal/nic/nictest that detects it, and a case of the kernel's own driver tests if one detects it.
package sabotage
