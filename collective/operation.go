package collective

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"sync"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// chunk is a range of the operation's elements: off, from the first element on, and n are in bytes.
type chunk struct{ off, n uint64 }

func chunks(count, size uint64, n int) []chunk {
	list := make([]chunk, n)
	for i := range list {
		first, k := Part(i, n, count)
		list[i] = chunk{first * size, k * size}
	}
	return list
}

func (r *Ring) mod(i int) int { return (i%r.c.Ranks + r.c.Ranks) % r.c.Ranks }

type operation struct {
	r     *Ring
	name  string
	t     devmem.Type
	b     devmem.Buffer
	tx    devmem.Binding
	list  []chunk
	off   uint64
	now   int // the current step, from 1; 0: none has begun
	steps int
	// plan returns what step i, from 0, sends and receives, and whether to add the received elements.
	plan func(i int) (send, receive chunk, add bool)
	err  error // not nil if an argument is wrong
}

// begin returns an operation without steps. It checks the arguments: if one is wrong, err of the operation is set.
func (r *Ring) begin(name string, t devmem.Type, b devmem.Buffer, off, count uint64) *operation {
	o := &operation{r: r, name: name, t: t, b: b, off: off}
	over, n := bits.Mul64(count, t.Size())
	err := t.Check(off, 0, count)
	if size := b.Size(); err == nil && (over != 0 || off > size || n > size-off) {
		err = fmt.Errorf("%d elements from %#x of a buffer of %#x bytes: %w", count, off, size, syscall.EFAULT)
	}
	if err == nil && b.GPU() != r.c.GPU {
		err = fmt.Errorf("memory of gpu %d in a ring of gpu %d: %w", b.GPU(), r.c.GPU, syscall.EXDEV)
	}
	if err != nil {
		o.err = fmt.Errorf("%s: %w", name, err)
		return o
	}
	o.list = chunks(count, t.Size(), r.c.Ranks)
	return o
}

// around sets steps in which chunks go round the ring: in the first step this rank sends the chunk with index first
// (modulo the ranks), in each later one the chunk that it received, or received and added to, in the step before. In
// the first adds steps it adds the received chunk to its own.
func (o *operation) around(first, steps, adds int) *operation {
	r := o.r
	if o.err == nil && adds > 0 && o.list[0].n > r.c.Scratch.Size() {
		o.err = fmt.Errorf("%s: a chunk of %d bytes, and scratch memory of %d: %w", o.name, o.list[0].n, r.c.Scratch.Size(),
			syscall.ENOSPC)
	}
	o.steps = steps
	o.plan = func(i int) (send, receive chunk, add bool) {
		return o.list[r.mod(first-i)], o.list[r.mod(first-1-i)], i < adds
	}
	return o
}

// do does the operation; with one rank it only returns o.err. Errors close the ring, except wrong arguments and
// errors of binding.
func (o *operation) do(ctx context.Context) (err error) {
	r := o.r
	if o.err != nil || r.c.Ranks == 1 {
		return o.err
	}
	r.now.Lock()
	defer r.now.Unlock()
	if o.tx, err = r.bind(o.b); err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	stop := context.AfterFunc(ctx, r.abort)
	for err == nil && o.now < o.steps {
		err = o.step(ctx)
	}
	if !stop() && ctx.Err() != nil {
		err = fmt.Errorf("%s: %w", o.where(), context.Cause(ctx))
	}
	if err != nil {
		r.abort()
	}
	return err
}

// bind returns b's binding for transmit, which lasts until another buffer is bound, or until Close; nil with
// Config.Copy.
func (r *Ring) bind(b devmem.Buffer) (devmem.Binding, error) {
	if r.c.Copy {
		return nil, nil //nolint:nilnil // Sender takes a nil binding: payload goes through host memory
	}
	select {
	case <-r.left: // the Ring is closed: perhaps nothing would end a new binding
		return nil, net.ErrClosed
	default:
	}
	if r.tx != nil && r.txOf == b {
		return r.tx, nil
	}
	if err := r.unbind(); err != nil {
		return nil, err
	}
	tx, err := r.c.Device.BindTX(b)
	if err != nil {
		return nil, err
	}
	r.tx, r.txOf = tx, b
	return tx, nil
}

func (r *Ring) unbind() error {
	if r.tx == nil {
		return nil
	}
	err := r.tx.Close()
	<-r.tx.Done()
	r.tx, r.txOf = nil, nil
	return err
}

func (o *operation) where() string { return fmt.Sprintf("%s, step %d of %d", o.name, o.now, o.steps) }

// step sends and receives a chunk; either may be empty.
func (o *operation) step(ctx context.Context) error {
	send, receive, add := o.plan(o.now)
	o.now++
	r := o.r
	var work sync.WaitGroup
	var sent error
	work.Go(func() {
		if sent = o.send(ctx, send); sent != nil {
			sent = r.fault(r.next, o.where(), sent)
			r.abort() // ends this step's receive, which may wait for a rank that waits for this one
		}
	})
	err := o.receive(ctx, receive, add)
	if err != nil {
		err = r.fault(r.prev, o.where(), err)
		r.abort()
	}
	work.Wait()
	switch {
	case sent == nil:
		return err
	case err == nil || errors.Is(err, net.ErrClosed):
		return sent
	case errors.Is(sent, net.ErrClosed):
		return err
	}
	return errors.Join(err, sent)
}

// send sends a chunk, and waits until its memory may change.
func (o *operation) send(ctx context.Context, c chunk) error {
	if err := o.r.sender.Send(ctx, o.b, o.tx, o.off+c.off, c.n); err != nil {
		return err
	}
	o.r.stats.Sent += c.n
	return o.r.sender.Wait()
}

func (o *operation) receive(ctx context.Context, c chunk, add bool) error {
	r := o.r
	to, base := o.b, o.off+c.off
	if add {
		to, base = r.c.Scratch, 0
	}
	host := r.stream.HostBytes()
	err := r.stream.Receive(ctx, to, base, c.n)
	r.stats.Linear += r.stream.HostBytes() - host
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("it has left the ring: %w", err)
	}
	if err != nil {
		return err
	}
	r.stats.Received += c.n
	if !add || c.n == 0 {
		return nil
	}
	return r.c.Memory.Reduce(ctx, o.t, o.b, o.off+c.off, r.c.Scratch, 0, c.n/o.t.Size())
}
