// Package bench is `vnic bench`: it measures the datapath on this machine, most measurements beside a
// yardstick in the same run.
//
// A Measurement is a row of the table. Its rig has two ways to move data: "ours", and the yardstick, which the
// rows memcpy lack. Runs of ours and of the yardstick alternate. The value of a run of ours (GB/s or
// ns/frame) divided by that of the next run of the yardstick is a ratio; the value of the next run of ours divided by
// this one's is the A/A ratio, which shows how far noise of the machine moves a ratio. A row that was measured has the
// medians, with intervals in which the true median lies with a confidence of at least 95 % (stats.go).
//
// A run fails if it moves nothing. Counters outside of the measuring loop count the bytes that a run of ours moves:
// the run fails unless they counted what it claims (by TCP and testpmd: at least that). The rows memcpy
// compare a piece of memory instead.
//
// The plain loop (plain.go), the yardstick of the rows worker, ring and poll, shares no code with virtq and does not
// change, so that these rows of different versions of vnic can be compared by their ratios.
//
// Model is `vnic bench --model`: it measures what a flow gets while workers copy memory, and reports beside it what
// lab.MaxMin predicts from flows alone and copies alone.
package bench
