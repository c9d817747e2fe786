package allreduce

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// Options are the flags of `vnic allreduce`.
type Options struct {
	session.Options

	Op       string
	Type     devmem.Type
	Min, Max uint64   // without Counts: bytes of the first row, and at most of the last
	Factor   uint64   // without Counts: of the bytes, from one row to the next
	Counts   []uint64 // elements of each row; none: Complete computes them from Min, Max and Factor
	Iters    int
	Warmup   int  // operations before the timed ones of a Half
	Validate bool // do one more operation for each Half, and compare every element of its result
	Root     int  // rank whose elements a broadcast copies
	Channels int  // rings that share each operation
	Timeout  time.Duration

	tamper func(*session.Set) // tests: called before elements are compared
	done   func([]Rank, *Row) // tests: called after each row
}

// Defaults returns the options of the command without flags, but with Seed 0.
func Defaults() Options {
	return Options{Options: session.Defaults(), Op: transfer.AllReduce,
		Type: devmem.Float32, Min: 1 << 20, Max: 16 << 20, Factor: 4, Iters: 5, Warmup: 1, Validate: true, Channels: 1,
		Timeout: time.Duration(limits.Silence)}
}

// Types are the element types by nccl-tests' names.
var Types = map[string]devmem.Type{"int32": devmem.Int32, "float": devmem.Float32, "bfloat16": devmem.BFloat16}

// Ops lists the operations that --op accepts.
var Ops = []string{transfer.AllReduce, transfer.ReduceScatter, transfer.AllGather, transfer.Broadcast}

const (
	maxChannels = 15 // a NIC has at most 16 pairs of queues, one of them for ordinary traffic

	maxRows  = 64
	maxIters = 1 << 20
	maxBytes = 16 << 30 // bytes of a row

	pool = 8 << 20 // bytes of each channel's page pool
)

func (o *Options) silence() time.Duration { return limits.Silence.Unless(o.Timeout) }

// Complete sets the options that follow from others, and returns an error for invalid ones.
func (o *Options) Complete() error {
	if err := cmp.Or(session.OneOf("--op", o.Op, Ops...), session.Modes(o.Modes),
		session.Number("--iters", o.Iters, 1, maxIters), session.Number("--warmup-iters", o.Warmup, 0, maxIters),
		session.Number("--channels", o.Channels, 1, maxChannels), session.Patience("--timeout", o.Timeout)); err != nil {
		return err
	}
	switch {
	case o.Type.Size() == 0:
		return errors.New("--dtype: int32, float or bfloat16")
	case o.Channels > 1 && o.Op != transfer.AllReduce && o.Op != transfer.Broadcast:
		return fmt.Errorf("--channels %d: with --op %s or %s only: parts of ranks would be in pieces", o.Channels,
			transfer.AllReduce, transfer.Broadcast)
	}
	o.Bind = o.Channels
	if err := errors.Join(o.rows(), o.Check()); err != nil {
		return err
	}
	d, err := o.Describe()
	if err != nil {
		return err
	}
	if o.Root < 0 || o.Root >= len(d.Guests) {
		return fmt.Errorf("--root %d: ranks are 0 to %d", o.Root, len(d.Guests)-1)
	}
	o.Window = o.layout(len(d.Guests)).end
	return o.Check() // Window is set now
}

// rows computes Counts, unless it is set, and checks it.
func (o *Options) rows() error {
	if len(o.Counts) == 0 {
		size := o.Type.Size()
		switch {
		case o.Min < size:
			return fmt.Errorf("--minbytes %s: at least an element of %d bytes", lab.FormatBytes(o.Min), size)
		case o.Max < o.Min:
			return fmt.Errorf("--minbytes %s, --maxbytes %s: the smaller one first", lab.FormatBytes(o.Min),
				lab.FormatBytes(o.Max))
		case o.Factor < 2 && o.Max > o.Min:
			return fmt.Errorf("--stepfactor %d: 2 at least", o.Factor)
		}
		for n := o.Min; n <= o.Max; n *= cmp.Or(o.Factor, 2) {
			o.Counts = append(o.Counts, n/size)
			if n > math.MaxUint64/cmp.Or(o.Factor, 2) {
				break
			}
		}
	}
	if len(o.Counts) > maxRows {
		return fmt.Errorf("%d rows: %d at most", len(o.Counts), maxRows)
	}
	for _, n := range o.Counts {
		if n == 0 || n > maxBytes/o.Type.Size() {
			return fmt.Errorf("%d elements: 1 to %d", n, maxBytes/o.Type.Size())
		}
	}
	return nil
}

// layout has the areas of a guest's part of GPU memory, in whole pages.
type layout struct {
	pool, scratch, data transfer.Area
	from, to            uint64 // offsets in data: of the source out of place, and of the result
	end                 uint64
}

func (o *Options) layout(ranks int) layout {
	longest := slices.Max(o.Counts) * o.Type.Size()
	channels := uint64(o.Channels)
	chunk := (slices.Max(o.Counts)/channels/uint64(ranks) + 2) * o.Type.Size()
	l := layout{pool: transfer.Area{Bytes: channels * pool}}
	l.scratch = transfer.Area{Off: l.pool.Bytes, Bytes: channels * session.Pages(chunk)}
	l.data = transfer.Area{Off: l.scratch.Off + l.scratch.Bytes, Bytes: 2 * session.Pages(longest)}
	l.from = session.Pages(longest)
	l.end = l.data.Off + l.data.Bytes
	return l
}
