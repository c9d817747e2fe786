package nic

// batchBytes bounds the payload of a batch, roughly. A Sender notifies its driver and the receivers
// when it has moved the last frame of a batch; they process that batch while the Sender moves the
// next one. With frames as long as GSO packets, they would wait for the Sender instead if a batch
// were as large as the ring.
const batchBytes = 256 << 10

// batchSize limits the batches of a Sender.
type batchSize struct{ last uint32 } // payload of the newest frame, an estimate for the next ones

// limit returns the part of the free frames that the next batch may fill: at least one.
func (b *batchSize) limit(free []*TxFrame) []*TxFrame {
	if uint64(b.last)*uint64(len(free)) <= batchBytes {
		return free
	}
	return free[:min(len(free), max(1, int(batchBytes/b.last)))]
}

// filled records the frames of a batch.
func (b *batchSize) filled(fs []*TxFrame) {
	if len(fs) > 0 {
		b.last = fs[len(fs)-1].Packet.PayloadLen
	}
}
