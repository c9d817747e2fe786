package nic

// batchBytes bounds a batch's payload, roughly. Driver and receivers process a batch while the Sender moves
// the next one; with batches as large as the ring, long frames would make them wait.
const batchBytes = 256 << 10

type batchSize struct{ last uint32 } // payload of the newest frame

// limit returns the free frames that the next batch may fill: at least one, if one is free.
func (b *batchSize) limit(free []*TxFrame) []*TxFrame {
	if uint64(b.last)*uint64(len(free)) <= batchBytes {
		return free
	}
	return free[:min(len(free), max(1, int(batchBytes/b.last)))]
}

func (b *batchSize) filled(fs []*TxFrame) {
	if len(fs) > 0 {
		b.last = fs[len(fs)-1].Packet.PayloadLen
	}
}
