package nic

// batchBytes bounds the payload of the frames that one Gather takes, if all are as long as the newest frame. Driver
// and receivers process a batch while the Sender moves the next one; a batch of many long frames would make them wait.
const batchBytes = 256 << 10

type batchSize struct{ last uint32 } // bytes of payload of the frame gathered last

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
