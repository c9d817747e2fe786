package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// Channel is a Ring, and the rank's memory as a Buffer of the Ring's Device.
type Channel struct {
	*Ring
	Buffer devmem.Buffer
}

// Channels are rings of the same ranks that share each operation: each of them has a part of the elements. They
// may be of one NIC, each with a receive queue, or of several (rails); then each NIC's Device has its own
// Buffer of the same memory.
type Channels struct{ list []Channel }

const maxChannels = 64

// NewChannels makes Channels of rings that have joined, and owns them. Their order must be the same on all
// ranks. EINVAL: no rings or more than 64, a nil Ring or Buffer, or Channels that differ in Config.Rank, Config.Ranks
// or the Buffer's size.
func NewChannels(list ...Channel) (*Channels, error) {
	if len(list) == 0 || len(list) > maxChannels {
		return nil, fmt.Errorf("%d channels: 1 to %d: %w", len(list), maxChannels, syscall.EINVAL)
	}
	for i, c := range list {
		if c.Ring == nil || c.Buffer == nil || c.c.Rank != list[0].c.Rank || c.c.Ranks != list[0].c.Ranks ||
			c.Buffer.Size() != list[0].Buffer.Size() {
			return nil, fmt.Errorf("channel %d: not of the rank and the memory of the first one: %w", i, syscall.EINVAL)
		}
	}
	return &Channels{list}, nil
}

// AllReduce is Ring.AllReduce, in which channel c adds the elements of Part(c, channels, count). After an error
// other than one of the arguments the channels are closed.
func (s *Channels) AllReduce(ctx context.Context, t devmem.Type, off, count uint64) error {
	return s.each(ctx, t, off, count, func(c Channel, off, count uint64) *operation {
		return c.allReduce(t, c.Buffer, off, count)
	})
}

// Broadcast is Ring.Broadcast with the parts of AllReduce.
func (s *Channels) Broadcast(ctx context.Context, t devmem.Type, off, count uint64, root int) error {
	return s.each(ctx, t, off, count, func(c Channel, off, count uint64) *operation {
		return c.broadcast(t, c.Buffer, off, count, root)
	})
}

// each does the channels' operations, which f returns, at the same time. If an argument is wrong, it does none.
func (s *Channels) each(ctx context.Context, t devmem.Type, off, count uint64,
	f func(c Channel, off, count uint64) *operation) error {
	if err := t.Check(off, 0, count); err != nil {
		return fmt.Errorf("channels: %w", err)
	}
	ops := make([]*operation, len(s.list))
	for i, c := range s.list {
		first, n := Part(i, len(s.list), count)
		if ops[i] = f(c, off+first*t.Size(), n); ops[i].err != nil {
			return fmt.Errorf("channel %d: %w", i, ops[i].err)
		}
	}
	errs := make([]error, len(s.list))
	var work sync.WaitGroup
	for i, o := range ops {
		work.Go(func() {
			if errs[i] = o.do(ctx); errs[i] == nil {
				return
			}
			errs[i] = fmt.Errorf("channel %d: %w", i, errs[i])
			for _, other := range s.list { // ends the waits of this rank and its neighbours
				other.abort()
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// Stats returns the sum of the channels' Stats.
func (s *Channels) Stats() (sum Stats) {
	for _, c := range s.list {
		x := c.Ring.Stats()
		sum.Sent, sum.Received, sum.Linear = sum.Sent+x.Sent, sum.Received+x.Received, sum.Linear+x.Linear
		sum.Looked, sum.Beats = sum.Looked+x.Looked, sum.Beats+x.Beats
	}
	return sum
}

// Close closes the rings.
func (s *Channels) Close() error {
	var errs []error
	for _, c := range s.list {
		errs = append(errs, c.Ring.Close())
	}
	return errors.Join(errs...)
}
