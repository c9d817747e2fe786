// Package splat finds the kernel's complaints in the lines of its console: oopses, BUG, WARN,
// reports of sanitizers and lockdep, lockups, stalls, hung tasks, panics, transmit timeouts, and
// leaked references to a network device.
//
// A Scanner takes the console's output piece by piece. It reports a complaint when its block is
// complete: at its end marker; if its kind has no end marker, at the first line that is not part of
// a trace; at the beginning of another complaint; or at Flush. A line comes from the kernel if it
// contains printk's time ("[ 12.345678]", printk.time=1, the default of distributions); the Scanner
// ignores other lines, and text before the time.
//
// The text comes from a guest. The Scanner never fails; it cuts lines at MaxLine, keeps at most MaxLines
// lines of a block, and reports at most MaxSplats complaints. Whoever can write to the guest's /dev/kmsg
// can fake a complaint. If two CPUs complain at the same moment, their blocks are mixed: then the second
// block is part of the first, or its beginning ends the first.
package splat
