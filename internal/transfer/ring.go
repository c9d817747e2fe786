package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/collective"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/undo"
)

// Area is a part of the GPU's memory or, with the kernel's driver, of the part that the guest allocated (GPU.Extents).
// Off and Bytes are multiples of devmem.PageSize.
type Area struct {
	Off   uint64 `json:"off"`
	Bytes uint64 `json:"bytes"`
}

// Rank is a guest's place in a ring of guests (package collective), and the GPU memory that it uses. Each
// channel is a ring of its own; an operation uses all of them.
type Rank struct {
	Rank    int            `json:"rank"`
	Ranks   int            `json:"ranks"`
	GPU     int            `json:"gpu"`
	Data    Area           `json:"data"`
	Pool    Area           `json:"pool"`    // for received packets, unless Copy is set
	Scratch Area           `json:"scratch"` // for one chunk per channel
	Queues  []int          `json:"queues"`  // one per channel; channels divide pool and scratch
	Listen  netip.AddrPort `json:"listen"`  // of channel 0, as From and Next; channel c adds 2c to their ports
	From    netip.AddrPort `json:"from"`
	Next    netip.AddrPort `json:"next"`
	Timeout time.Duration  `json:"timeout"`        // nanoseconds; 0: collective's default
	Copy    bool           `json:"copy,omitempty"` // see collective.Config.Copy
}

// Names of collective operations, as in nccl-tests.
const (
	AllReduce     = "all_reduce"
	ReduceScatter = "reduce_scatter"
	AllGather     = "all_gather"
	Broadcast     = "broadcast"
)

// CollectiveArgs are the arguments of a collective operation.
type CollectiveArgs struct {
	Op    string      `json:"op"`
	Type  devmem.Type `json:"type"`
	Off   uint64      `json:"off"` // in Rank.Data
	Count uint64      `json:"count"`
	Root  int         `json:"root,omitempty"`
	Times int         `json:"times,omitempty"` // 0: once
	Warm  int         `json:"warm,omitempty"`  // further operations before, which are not measured
	// From is the offset in Rank.Data from which the elements are copied before each operation (out of place); nil:
	// they are at Off.
	From *uint64 `json:"from,omitempty"`
}

// CollectiveResult is the cost of the operation for this rank.
type CollectiveResult struct {
	Stats collective.Stats `json:"stats"`
	Cost                   // of all measured operations, including copies for CollectiveArgs.From
}

// member is a Node's place in the rings of its channels.
type member struct {
	rings  []*collective.Ring
	all    *collective.Channels // nil: one channel
	memory devmem.Memory
	data   devmem.Buffer
	undo   undo.Stack
	busy   sync.Mutex // one Collective at a time; Leave waits for it
}

// Join takes a place in a ring on each channel, and returns when each ring is connected with both neighbours (with one
// rank there are none). After an error it has closed what it opened. EALREADY: the Node is in a ring.
func (n *Node) Join(ctx context.Context, r Rank) (err error) {
	n.joining.Lock()
	defer n.joining.Unlock()
	n.mu.Lock()
	had := n.member != nil
	n.mu.Unlock()
	if had {
		return fmt.Errorf("join: in a ring already: %w", syscall.EALREADY)
	}
	m := &member{memory: n.gpuMemory()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("join: %w", err), m.close(), m.undo.All())
		}
	}()
	channels := uint64(len(r.Queues))
	if channels == 0 || channels > maxChannels {
		return fmt.Errorf("%d channels: 1 to %d: %w", channels, maxChannels, syscall.EINVAL)
	}
	list := []namedArea{{"data", r.Data}}
	for c := range channels {
		list = append(list, namedArea{"pool", r.Pool.part(c, channels)}, namedArea{"scratch", r.Scratch.part(c, channels)})
	}
	buffers, err := n.areas(&m.undo, r.GPU, list...)
	if err != nil {
		return err
	}
	m.data, m.rings = buffers[0], make([]*collective.Ring, channels)
	eg, ctx := errgroup.WithContext(ctx)
	for c, queue := range r.Queues {
		port := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+uint16(2*c)) }
		conf := collective.Config{Rank: r.Rank, Ranks: r.Ranks, Device: n.dev, Memory: m.memory, GPU: r.GPU, Queue: queue,
			Pool: buffers[1+2*c], Scratch: buffers[2+2*c], Listen: port(r.Listen), From: port(r.From), Next: port(r.Next),
			Timeout: r.Timeout, Copy: r.Copy}
		eg.Go(func() (err error) { m.rings[c], err = collective.Join(ctx, conf); return err })
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	if channels > 1 {
		parts := make([]collective.Channel, channels)
		for c := range parts {
			parts[c] = collective.Channel{Ring: m.rings[c], Buffer: m.data}
		}
		if m.all, err = collective.NewChannels(parts...); err != nil {
			return err
		}
	}
	n.mu.Lock()
	n.member = m
	n.mu.Unlock()
	return nil
}

const maxChannels = 16

// part returns part c, from 0, of n equal parts of an area, in whole pages.
func (a Area) part(c, n uint64) Area {
	each := a.Bytes / n &^ (devmem.PageSize - 1)
	return Area{Off: a.Off + c*each, Bytes: each}
}

func (m *member) stats() collective.Stats {
	if m.all != nil {
		return m.all.Stats()
	}
	return m.rings[0].Stats()
}

func (m *member) close() error {
	var errs []error
	for _, r := range m.rings {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

// Collective runs an operation as often as c says. It ends with an error if ctx ends or Leave is called before.
func (n *Node) Collective(ctx context.Context, c CollectiveArgs) (res CollectiveResult, err error) {
	n.mu.Lock()
	m := n.member
	n.mu.Unlock()
	if m == nil {
		return res, fmt.Errorf("%s: in no ring: %w", c.Op, syscall.EINVAL)
	}
	m.busy.Lock()
	defer m.busy.Unlock()
	f, err := m.operation(c)
	if err != nil {
		return res, err
	}
	if c.From != nil {
		in := f
		f = func(ctx context.Context) error {
			if err := m.memory.Gather(ctx, m.data, m.data, []devmem.Move{{Src: *c.From, Dst: c.Off,
				Len: c.Count * c.Type.Size()}}); err != nil {
				return err
			}
			return in(ctx)
		}
	}
	for range c.Warm {
		if err := f(ctx); err != nil {
			return res, err
		}
	}
	before := m.stats()
	err = n.measure(&res.Cost, func() error {
		for range max(1, c.Times) {
			if err := f(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	res.Stats = since(m.stats(), before)
	return res, err
}

func (m *member) operation(c CollectiveArgs) (func(ctx context.Context) error, error) {
	if m.all != nil {
		switch c.Op {
		case AllReduce:
			return func(ctx context.Context) error { return m.all.AllReduce(ctx, c.Type, c.Off, c.Count) }, nil
		case Broadcast:
			return func(ctx context.Context) error { return m.all.Broadcast(ctx, c.Type, c.Off, c.Count, c.Root) }, nil
		}
		return nil, fmt.Errorf("operation %q on %d channels: %w", c.Op, len(m.rings), syscall.EOPNOTSUPP)
	}
	r := m.rings[0]
	switch c.Op {
	case AllReduce:
		return func(ctx context.Context) error { return r.AllReduce(ctx, c.Type, m.data, c.Off, c.Count) }, nil
	case ReduceScatter:
		return func(ctx context.Context) error { return r.ReduceScatter(ctx, c.Type, m.data, c.Off, c.Count) }, nil
	case AllGather:
		return func(ctx context.Context) error { return r.AllGather(ctx, c.Type, m.data, c.Off, c.Count) }, nil
	case Broadcast:
		return func(ctx context.Context) error { return r.Broadcast(ctx, c.Type, m.data, c.Off, c.Count, c.Root) }, nil
	}
	return nil, fmt.Errorf("operation %q: %w", c.Op, syscall.EINVAL)
}

// Leave ends the running operation and leaves the ring, if any.
func (n *Node) Leave(context.Context) error {
	n.joining.Lock()
	defer n.joining.Unlock()
	n.mu.Lock()
	m := n.member
	n.member = nil
	n.mu.Unlock()
	if m == nil {
		return nil
	}
	err := m.close()
	m.busy.Lock()
	defer m.busy.Unlock()
	return errors.Join(err, m.undo.All())
}
