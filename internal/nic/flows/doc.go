// Package flows keeps an account of flows: counters of each flow that passes a NIC's queues.
//
// A Table has a fixed number of rows, which New allocates. Each queue has a Shard of it for each direction. One
// goroutine at a time adds to a Shard: it counts packets by flow in a small array (Acc), and adds these counts
// to the rows at the end of a batch, or when the array is full. A shard takes rows from the table in blocks. If
// no block is free, a shard with less than its equal part takes the least used block of the shard that has most;
// otherwise a new flow gets the row of a little used flow. When a flow loses its row, the shard adds its
// counters to the sum over such flows (Others).
//
// Cost: a row takes 248 bytes, and each shard 2 KiB and 4 to 8 bytes for each row of the table; only New
// allocates. A packet costs a comparison with the flow of the previous packet, and at most 8 more if the flow is
// another one. The hash of the index has a random seed, so that no peer can choose flows with the same place in
// the index.
package flows
