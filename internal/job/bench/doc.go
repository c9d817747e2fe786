// Package bench is `vnic bench`: it measures the datapath on this machine, most measurements beside a yardstick in the
// same run.
//
// A Measurement is a row of the table. Its rig has two ways to move the same kind of data: "ours", with vnic, and the
// yardstick, without. Runs of ours and of the yardstick alternate, with one more run of ours at the end. A run of ours
// and the next run of the yardstick give a ratio. Two successive runs of ours give the A/A ratio, which shows how far
// noise of the machine alone moves a ratio. So each run of ours follows a run of the yardstick. A row has the medians,
// each with the interval in which the true median lies with a confidence of 95 %, by order statistics (stats.go).
//
// The yardstick of the rows about queues, ports and rules is a small network of vnic's; the rows memcpy have none.
//
// Counters of NICs, outside of the measuring loop, count the bytes of a row; the rows memcpy compare a piece of memory
// instead. A run of ours fails if it claims more bytes than were counted, or moves nothing. It also fails if it claims
// fewer, unless the counters may include other traffic or retransmissions.
//
// The plain loop (plain.go), the yardstick of the datapath, does not change, so that rows of different versions of vnic
// can be compared by their ratios. Therefore it has its own code and shares none with virtq or nic.
//
// A run takes about Options.Time; a pair has two runs. Measurements do not overlap.
//
// Model is `vnic bench --model`, with rows of its own: it measures what a flow gets while workers copy memory, beside
// what lab.MaxMin predicts from flows alone and copies alone. It uses about six times the size of the last-level
// caches, or 768 MiB if that is more, but usually at most half of the available memory.
package bench
