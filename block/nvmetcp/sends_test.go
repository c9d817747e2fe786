package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// lateDevice makes connections with a ReadCompletion that times out at once if it has a deadline. If err is not
// nil, their SendDevmem returns it.
type lateDevice struct {
	devmem.Device
	waited atomic.Int32
	err    error
}

type lateConn struct {
	devmem.Conn
	d *lateDevice
}

func (d *lateDevice) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	c, err := d.Device.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return &lateConn{c, d}, nil
}

func (c *lateConn) ReadCompletion(deadline time.Time) (lo, hi uint32, err error) {
	if !deadline.IsZero() {
		return 0, 0, os.ErrDeadlineExceeded
	}
	c.d.waited.Add(1)
	return c.Conn.ReadCompletion(deadline)
}

func (c *lateConn) SendDevmem(binding uint32, ranges []devmem.Range) (int, error) {
	if c.d.err != nil {
		return 0, c.d.err
	}
	return c.Conn.SendDevmem(binding, ranges)
}

// Invariant: nvmetcp: A write whose error is not ETIMEDOUT is done when its memory is no longer in
// use, which its answer does not show.
func TestWriteIsDoneWhenItsMemoryIsFree(t *testing.T) {
	r := newRig(t, script{})
	d := &lateDevice{Device: r.dev}
	r.conf.Device = d
	dev := r.open(t)
	i, done := 0, 0
	testkit.OK(t, dev.Do(t.Context(), 4, func() (block.Op, bool) {
		i++
		return block.Op{Write: i%3 > 0, Off: uint64(i) * 65536, Mem: uint64(i) * 65536, Len: uint64(i%2*8+1) * 4096}, i <= 40
	}, func(x block.Done) {
		done++
		testkit.OK(t, x.Err)
		if x.Write && d.waited.Load() == 0 {
			t.Errorf("%v is done, and nobody has asked for its memory", x.Op)
		}
	}))
	testkit.Equal(t, "operations", done, 40)
	testkit.OK(t, dev.Close())

	d.err = syscall.ENODEV // in Linux the error after a change of the route
	dev = r.open(t)
	errs := r.each(dev, []block.Op{{Write: true, Len: 4096}, {Len: 4096, Mem: 4096}, {Write: true, Len: 65536, Mem: 8192}})
	testkit.ErrorIs(t, errs[0], syscall.ENODEV)
	testkit.ErrorSays(t, errs[0], "send: ")
	testkit.ErrorIs(t, errs[2], syscall.ENODEV)
}

// busyDevice makes bindings for transmit. The first Close of one closes it, but returns EBUSY.
type busyDevice struct{ devmem.Device }

type busyBinding struct {
	devmem.Binding
	once sync.Once
}

func (d busyDevice) BindTX(b devmem.Buffer) (devmem.Binding, error) {
	x, err := d.Device.BindTX(b)
	return &busyBinding{Binding: x}, err
}

func (b *busyBinding) Close() (err error) {
	b.once.Do(func() { err = syscall.EBUSY })
	return errors.Join(err, b.Binding.Close())
}

// If Do's context ends during a write, the write has the same error as Do: the context's cause, and the error of the
// binding's Close.
func TestErrorOfEndedDoIsItsOperations(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	r := newRig(t, script{answer: func(*ioServer, *command) bool { stop(errTest); return true }})
	r.conf.Device = busyDevice{r.dev}
	d := r.open(t)
	n := 0
	var failed error
	err := d.Do(ctx, 1, func() (block.Op, bool) { n++; return block.Op{Write: true, Len: 512}, n == 1 },
		func(x block.Done) { failed = x.Err })
	testkit.ErrorIs(t, failed, errTest)
	testkit.ErrorIs(t, failed, syscall.EBUSY)
	testkit.Equal(t, "Do's error", fmt.Sprint(err), fmt.Sprint(failed))
}

// Open returns ETIMEDOUT if the controller never becomes ready.
func TestControllerThatIsNotReady(t *testing.T) {
	r := newRig(t, script{idle: true})
	testkit.ErrorIs(t, testkit.Err(Open(t.Context(), r.conf)), syscall.ETIMEDOUT)
}
