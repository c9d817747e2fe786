// Command vhost-user-rng is an entropy device (virtio 1.3, 5.4): one queue, whose buffers it fills.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"io"
	"log"
	"log/slog"
	"os/signal"
	"syscall"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// queue is the device's end of the one virtqueue.
type queue struct {
	*virtq.Device
	space  *dma.Space // the guest's memory
	copier *dma.Copier
	source io.Reader
}

// Base returns the position at which the ring continues, in vhost-user's encoding (GET_VRING_BASE).
func (q *queue) Base() uint32 { return q.Device.Base().State() }

// Process fills the next buffer, at most 4096 bytes of it.
func (q *queue) Process() error {
	defer q.space.Leave(q.space.Enter()) // until Leave the guest's memory stays mapped
	var chain virtq.Chain
	if ok, err := q.Peek(&chain); !ok {
		return err
	}
	b := make([]byte, min(4096, chain.InLen))
	if _, err := io.ReadFull(q.source, b); err != nil {
		return err
	}
	n, err := q.copier.Write(chain.In, b)
	q.Commit(chain.Head, uint32(n))
	return err
}

// counter is a Reader of the bytes 0, 1, 2, ... 255, 0, ..., which a test recognises.
type counter byte

func (c *counter) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(*c)
		*c++
	}
	return len(b), nil
}

func main() {
	path := flag.String("socket-path", "rng.sock", "listen on this unix socket")
	count := flag.Bool("counter", false, "give 0, 1, 2, ... in the place of random bytes")
	flag.Parse()
	source := rand.Reader
	if *count {
		source = new(counter)
	}
	space := dma.NewSpace("guest", dma.NewFiles())
	open := func(v vhostuser.Vring) (vhostuser.Queue, error) {
		ring := virtq.Config{Size: v.Size, Desc: v.Desc, Avail: v.Avail, Used: v.Used, Base: virtq.BaseOf(v.Base)}
		q, err := virtq.NewDevice(space, ring)
		return &queue{q, space, dma.NewCopier(), source}, err
	}
	device := &vhostuser.QueueDevice{Queues: 1, Log: slog.Default(), Open: open}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := vhostuser.ListenAndServe(ctx, *path, device, space, slog.Default()); err != nil {
		log.Fatal(err)
	}
}
