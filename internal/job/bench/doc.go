// Package bench is `vnic bench`: it measures the datapath on this machine, each measurement beside a yardstick in the
// same run.
//
// A Measurement is a row of the table: what is moved, and what moves as much without us. Ours and the yardstick
// run in turn, and ours once more at the end. A run of ours and the yardstick's behind it give a ratio; it and ours
// behind that one the A/A pair, which says what the machine's noise alone makes of a ratio. So each run of ours comes
// behind the yardstick: what caches and TCP's windows were left as is the same. A row has the medians, and the interval
// in which a median lies with a confidence of 95 %, by order statistics (stats.go).
//
// Counters outside of the measuring loop, a device's or the receiver's end of a connection, count the bytes of a row. A
// run fails if it claims another number of bytes than they counted, or if it moves nothing.
//
// Yardsticks do not change: rows of different versions are compared by their ratios. So the plain loop (plain.go) is
// code of its own and shares nothing with virtq or nic.
//
// A measurement costs its time a run (Options.Time), twice for each pair, and a second or two to set up; memory is at
// most 512 MiB, taken by one measurement at a time.
//
// Model is `vnic bench --model`, and has rows of its own: what a flow gets beside workers that copy, next to what
// lab.MaxMin makes of either alone. It takes three times twice the last-level caches of memory, and no more than half
// of what is available.
package bench
