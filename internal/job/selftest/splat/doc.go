// Package splat finds the kernel's complaints on its console: oopses, BUG, WARN, reports of sanitizers, lockdep
// and kmemleak, lockups, stalls, hung tasks, panics, transmit timeouts, and leaked references to a network
// device.
//
// A Scanner takes the console's output piece by piece. It reports a complaint when its block, all its lines, is
// complete: at its only line or its end marker; at the first line that is not part of a trace; at the beginning of
// another complaint; or at Flush. It reports stalls and leaked references with the same title once. It ignores lines
// without printk's time ("[ 12.345678]", printk.time=1).
//
// The text comes from a guest: the Scanner never fails, and bounds lines (MaxLine), lines of a block
// (MaxLines) and complaints (MaxSplats). Programs that can write to the guest's /dev/kmsg can fake a
// complaint, and complaints of two CPUs at the same moment may be mixed.
package splat
