package nic

import "testing"

// TestBatchSize: a long newest frame limits the next batch, a short one does not.
func TestBatchSize(t *testing.T) {
	frames := make([]*TxFrame, 32)
	for i := range frames {
		frames[i] = new(TxFrame)
	}
	var b batchSize
	for _, c := range []struct {
		payload uint32
		free    int
		want    int
	}{
		{0, 32, 32}, {64, 32, 32}, {1448, 32, 32}, {8192, 32, 32}, {batchBytes / 32, 32, 32}, {64 << 10, 32, 4},
		{64 << 10, 3, 3}, {64 << 10, 0, 0}, {batchBytes + 1, 32, 1}, {1<<32 - 1, 32, 1}, {1<<32 - 1, 0, 0},
	} {
		frames[4].Packet.PayloadLen = c.payload
		b.filled(frames[:5])
		b.filled(nil) // no change
		if n := len(b.limit(frames[:c.free])); n != c.want {
			t.Errorf("behind frames of %d bytes a batch has %d of %d frames, not %d", c.payload, n, c.free, c.want)
		}
	}
}
