// Package flows keeps an account of flows: counters of each flow that passes a NIC's queues.
//
// A Table has a fixed number of rows, which New allocates. Each queue pair has a Shard for each direction. One
// goroutine at a time adds to a Shard: it counts packets by flow in a small array (Acc), and adds these counts
// to the rows at the end of a batch, or when the array is full. A shard takes rows from the table in blocks,
// as long as there are free ones. After that, a shard with less than its equal part of the blocks may take the least
// used block of the shard that has most. Otherwise a new flow gets the row of a little used flow of its shard. When a
// flow loses its row, the shard that had the row adds the flow's counters to its sum over such flows (Others).
//
// Cost: a row takes 248 bytes, and each shard about 2 KiB and 4 to 8 bytes for each row of the table; counting
// allocates nothing. The hash of the index has a random seed, so that no peer can choose flows with the same
// place in the index.
package flows
