package servelab

import (
	"context"
	"time"
)

// pauses has the guests' QEMUs stop and go on in the middle of a transfer (QMP stop, cont), now the receiver's, now the
// sender's. More arrives after each, all of it where the receiver's buffers and flow rule say.
//
// Invariant: nic: A transfer between guests' GPUs goes on over stops and conts of their QEMUs.
func (b *bench) pauses(ctx context.Context, s *server, guests *pair) {
	b.Helper()
	const times = 10
	before := s.received(ctx)
	sent := make(chan error, 1)
	go func() { sent <- b.send(ctx, guests[0], guests[1]) }()
	// until waits for n bytes of the transfer.
	until := func(what string, n uint64) (now uint64) {
		b.Helper()
		for late := time.Now().Add(patience); ; {
			if now = s.received(ctx).gpu - before.gpu; now >= n {
				return now
			}
			select {
			case err := <-sent:
				b.Fatalf("%s: the transfer has ended behind %d bytes: %v", what, now, err)
			default:
			}
			if time.Now().After(late) {
				b.Fatalf("%s: the transfer stands still behind %d of %d bytes", what, now, n)
			}
		}
	}
	var at uint64
	for i := range uint64(times) {
		at = until("before a stop", max(at+1, transfer/(times+1)*(i+1)))
		g := guests[1-i%2]
		b.must("stop", g.QMP(ctx, "stop", nil))
		b.must("cont", g.QMP(ctx, "cont", nil))
	}
	if at >= transfer {
		b.Fatal("the transfer was over before the last stop: this check would see nothing")
	}
	b.must("send", <-sent)
	if n := s.received(ctx); n.gpu-before.gpu < transfer || n.host-before.host > transfer/1000 {
		b.Fatalf("of %d bytes %d were received in GPU memory, %d in host memory", transfer, n.gpu-before.gpu,
			n.host-before.host)
	}
	b.ok("from GPU to GPU, over %d stops and conts, the last behind %d of %d bytes", times, at, transfer)
}

// payload is what was received, by where it lies.
type payload struct{ gpu, host uint64 }

// received is what the second port was sent.
func (s *server) received(ctx context.Context) (n payload) {
	for _, q := range s.stat(ctx)[1].Queues {
		n.gpu += q.RX.Device + q.RX.GPUFile
		n.host += q.RX.Host
	}
	return n
}
