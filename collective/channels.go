package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// Channel is a Ring, and the memory of its rank as the Ring's Device knows it.
type Channel struct {
	*Ring
	Buffer devmem.Buffer
}

// Channels are several rings of the same ranks that share the work of each operation: the elements are cut in as many
// parts as there are channels, and each goes round a ring of its own at the same time. Channels may be connections of
// one NIC, each with a receive queue, or of a NIC each (rails); then each NIC's Device has its own Buffer of the same
// memory.
type Channels struct{ list []Channel }

// maxChannels bounds what Channels cost.
const maxChannels = 64

// NewChannels makes Channels of rings that have joined, which it owns. All ranks have as many, in the same order.
// EINVAL: none, too many, or rings that are not of one rank.
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

// AllReduce is Ring.AllReduce of all channels' buffers. Channel c adds the elements that Part(c, channels, count) says,
// in its own order of ranks. After an error of any channel all are closed.
func (s *Channels) AllReduce(ctx context.Context, t devmem.Type, off, count uint64) error {
	return s.each(ctx, t, off, count, func(c Channel, off, count uint64) error {
		_, err := c.reduces("all-reduce", t, c.Buffer, off, count)
		return err
	}, func(ctx context.Context, c Channel, off, count uint64) error {
		return c.AllReduce(ctx, t, c.Buffer, off, count)
	})
}

// Broadcast is Ring.Broadcast, likewise.
func (s *Channels) Broadcast(ctx context.Context, t devmem.Type, off, count uint64, root int) error {
	return s.each(ctx, t, off, count, func(c Channel, off, count uint64) error {
		return c.checkBroadcast(t, c.Buffer, off, count, root)
	}, func(ctx context.Context, c Channel, off, count uint64) error {
		return c.Broadcast(ctx, t, c.Buffer, off, count, root)
	})
}

// each has all channels do their parts at the same time, if check finds nothing wrong with any.
func (s *Channels) each(ctx context.Context, t devmem.Type, off, count uint64,
	check func(c Channel, off, count uint64) error,
	f func(ctx context.Context, c Channel, off, count uint64) error) error {
	if err := t.Check(off, 0, count); err != nil {
		return fmt.Errorf("channels: %w", err)
	}
	for i, c := range s.list {
		first, n := Part(i, len(s.list), count)
		if err := check(c, off+first*t.Size(), n); err != nil {
			return fmt.Errorf("channel %d: %w", i, err)
		}
	}
	errs := make([]error, len(s.list))
	var work sync.WaitGroup
	for i, c := range s.list {
		first, n := Part(i, len(s.list), count)
		work.Go(func() {
			if errs[i] = f(ctx, c, off+first*t.Size(), n); errs[i] == nil {
				return
			}
			errs[i] = fmt.Errorf("channel %d: %w", i, errs[i])
			for _, other := range s.list { // whose neighbours may wait for the rank that failed
				other.abort()
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// Stats adds up those of all channels.
func (s *Channels) Stats() (sum Stats) {
	for _, c := range s.list {
		x := c.Ring.Stats()
		sum.Sent, sum.Received, sum.Linear = sum.Sent+x.Sent, sum.Received+x.Received, sum.Linear+x.Linear
		sum.Looked, sum.Beats = sum.Looked+x.Looked, sum.Beats+x.Beats
	}
	return sum
}

// Close leaves all rings.
func (s *Channels) Close() error {
	var errs []error
	for _, c := range s.list {
		errs = append(errs, c.Ring.Close())
	}
	return errors.Join(errs...)
}
