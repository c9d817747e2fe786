// Package bench is `vnic bench`: it measures the datapath on this machine, each measurement beside a yardstick in the
// same run.
//
// A Measurement is a row of the table. Its rig has two ways to move the same kind of data: "ours", with vnic, and the
// yardstick, without. Runs of ours and of the yardstick alternate, with one more run of ours at the end. A run of
// ours and the next run of the yardstick give a ratio. Two successive runs of ours give the A/A ratio, which shows
// how far noise of the machine alone moves a ratio. So each run of ours follows a run of the yardstick, and finds
// caches and TCP windows in the same state. A row has the medians, each with the interval in which the true median
// lies with a confidence of 95 %, by order statistics (stats.go).
//
// The yardstick of the rows about queues, ports and rules is a small network of vnic's; the rows memcpy have none.
//
// Counters of NICs, outside of the measuring loop, count the bytes of a row; the rows memcpy compare a piece of memory
// instead. A run fails if it claims more bytes than were counted, or moves nothing. It also fails if it claims fewer,
// unless the counters include other traffic or retransmissions.
//
// The plain loop (plain.go), the yardstick of the datapath, does not change, so that rows of different versions of vnic
// can be compared by their ratios. Therefore it has its own code and shares none with virtq or nic.
//
// A run takes Options.Time; a pair has two runs; setting up takes a second or two. Memory is at most 512 MiB;
// measurements do not overlap.
//
// Model is `vnic bench --model`, with rows of its own: it measures what a flow gets while workers copy memory, beside
// what lab.MaxMin predicts from flows alone and copies alone. It uses six times the size of the last-level caches, at
// least 768 MiB, but at most half of the available memory.
package bench
