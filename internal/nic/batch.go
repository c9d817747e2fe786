package nic

// batchBytes is how much payload the frames of a batch have together, at about the most. Their
// sender and their receivers are told of them when the last one has been moved: while the next
// batch is, they work on this one. Of frames as long as GSO packets, a batch as large as the ring
// allows would have them take turns with the worker instead.
const batchBytes = 256 << 10

// batchSize limits the batches of a Sender.
type batchSize struct{ last uint32 } // payload of the newest frame, which the next ones are taken to be like

// of gives those of the free frames that the next batch may fill: one at the least.
func (b *batchSize) of(free []*TxFrame) []*TxFrame {
	if uint64(b.last)*uint64(len(free)) <= batchBytes {
		return free
	}
	return free[:min(len(free), max(1, int(batchBytes/b.last)))]
}

// filled notes the frames of a batch.
func (b *batchSize) filled(fs []*TxFrame) {
	if len(fs) > 0 {
		b.last = fs[len(fs)-1].Packet.PayloadLen
	}
}
