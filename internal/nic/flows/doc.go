// Package flows keeps an account of who sends what to whom: counters of each flow that passes a NIC's queues.
//
// A Table has a fixed number of rows, all made when the table is. Each queue, in each direction, has a Shard of it, to
// which one goroutine at a time adds: it counts packets in a small array, by flow, and adds these to the rows once for
// each batch and flow. A shard takes rows from the table in blocks, as long as there are free ones, however many. When
// none is free, a shard with less than its equal part takes the least used block of the shard that has most, once for
// each block of that part; any other gives a new flow the row of the least used one of a block of its own. The counters
// of a flow that loses its row go to its shard's others.
//
// Cost. A row takes 248 bytes, and each shard 2 KiB and 4 to 8 bytes for each row of the table; nothing is allocated
// afterwards, whatever passes. A packet costs a comparison with the flow before it; a flow of a batch one
// look-up, of at most the longest run of taken places in an index that is at most half full, and a new flow at most
// blockRows comparisons more; one that takes a block from another shard looks at all rows of that, once for each block
// of the shard's part. The hash of the index is seeded, so that no peer can aim at one place of it. A shard's lock is
// held for the flows of one batch, or by a reader for the copy of one block.
package flows
