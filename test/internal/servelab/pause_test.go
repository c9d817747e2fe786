package servelab

import (
	"context"

	"vnic.dev/vnic/internal/testkit"
)

// pauses stops and continues the guests' QEMUs by turns (QMP stop, cont) while the first guest sends from its GPU to
// the second's. All bytes of the transfer must be received in GPU memory, and hardly any payload in host memory.
func (b *bench) pauses(ctx context.Context, s *server, guests *pair) {
	b.Helper()
	const times = 10
	before := s.received(ctx)
	sent := make(chan error, 1)
	go func() { sent <- b.send(ctx, guests[0], guests[1]) }()
	var offset uint64
	for i := range uint64(times) {
		want := max(offset+1, transfer/(times+1)*(i+1))
		testkit.Eventually(b.T, "the transfer goes on", func() bool {
			offset = s.received(ctx).gpu - before.gpu
			select {
			case err := <-sent:
				b.Fatalf("the transfer has ended behind %d bytes and %d stops: %v", offset, i, err)
			default:
			}
			return offset >= want
		})
		g := guests[1-i%2]
		b.must("stop", g.QMP(ctx, "stop", nil))
		b.must("cont", g.QMP(ctx, "cont", nil))
	}
	if offset >= transfer {
		b.Fatal("the transfer was over before the last stop: this check would see nothing")
	}
	b.must("send", <-sent)
	if n := s.received(ctx); n.gpu-before.gpu < transfer || n.host-before.host > transfer/1000 {
		b.Fatalf("of %d bytes %d were received in GPU memory, %d in host memory", transfer, n.gpu-before.gpu,
			n.host-before.host)
	}
	b.ok("from GPU to GPU, over %d stops and conts, the last behind %d of %d bytes", times, offset, transfer)
}

// payload has the numbers of received payload bytes, by kind of memory.
type payload struct{ gpu, host uint64 }

// received returns how much payload the server's second port has received, on all queues.
func (s *server) received(ctx context.Context) (n payload) {
	for _, q := range s.stat(ctx)[1].Queues {
		n.gpu += q.RX.Device + q.RX.GPUFile
		n.host += q.RX.Host
	}
	return n
}
