// Package splat finds what a kernel complains about in the lines of its console: oopses, BUG, WARN,
// reports of sanitizers and lockdep, lockups, stalls, hung tasks, panics, transmit timeouts, and
// references to a network device that nobody gives back.
//
// A Scanner takes the console's bytes as they come. It reports a complaint when its block is
// complete: at its end marker, at the first line that is no part of a trace where there is no such
// marker, or at Flush. Lines are the kernel's if they have printk's time ("[   12.345678]",
// printk.time=1, the default of distributions); what is printed without it is not looked at, nor
// what precedes it in a line.
//
// Text comes from a guest: nothing of it makes the scanner fail, lines are cut at MaxLine, a block
// has MaxLines, and MaxSplats are reported. Whoever can write to /dev/kmsg there can write a
// complaint. The blocks of two CPUs that complain at the same moment are mixed: then the second is
// part of the first, or its beginning ends the first.
package splat
