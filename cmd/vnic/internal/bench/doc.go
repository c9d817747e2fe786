// Package bench is `vnic bench`: it measures the datapath on this machine, each measurement beside a yardstick in the
// same run.
//
// A Measurement is a row of the table: what is moved, and what moves as much without us. A round runs ours, the
// yardstick, and ours again: the first two give a ratio, the first and the last one the A/A pair, which says what the
// machine's noise alone makes of a ratio. A row has the median of its rounds, and the interval in which the median
// lies with a confidence of 95 %, by order statistics (golang.org/x/perf/benchmath).
//
// What a row says was moved is what counters outside of the measuring loop have seen: a device's, or the receiver's
// end of a connection. A run of which they say otherwise fails, and so does one that moves nothing.
//
// Yardsticks do not change: rows of different versions are compared by their ratios. So the plain loop (plain.go) is
// code of its own and shares nothing with virtq or nic.
//
// A measurement costs its time a run (Options.Time), rounds times three, and a second or two to set up; memory is at
// most 512 MiB, taken by one measurement at a time.
package bench
