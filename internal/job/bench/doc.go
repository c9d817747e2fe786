// Package bench is `vnic bench`: it measures the datapath on this machine, most measurements beside a
// yardstick in the same run.
//
// A Measurement is a row of the table. Its rig has two ways to move data: "ours", and the yardstick, which the
// rows memcpy lack. Runs of ours and of the yardstick alternate. A run of ours divided by the next
// run of the yardstick is a ratio; the next run of ours divided by this one is the A/A ratio, which shows how
// far noise of the machine moves a ratio. A row has the medians, with intervals in which the true median lies with a
// confidence of 95 % (stats.go).
//
// Counters outside of the measuring loop count the bytes of a row: a run of ours fails unless they counted
// what it claims (by TCP and testpmd: at least that), or if it moves nothing. The rows memcpy
// compare a piece of memory instead.
//
// The plain loop (plain.go), the yardstick of the datapath, has its own code and does not change, so that
// rows of different versions of vnic can be compared by their ratios.
//
// Model is `vnic bench --model`: it measures what a flow gets while workers copy memory, beside what
// lab.MaxMin predicts from flows alone and copies alone.
package bench
