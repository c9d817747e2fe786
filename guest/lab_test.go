package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// pair returns two Devices, as of guests 0 and 1, on a wire in memory. They are closed when the test ends.
func pair(t *testing.T) (a, b *Device) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	na, nb := stacktest.NewPair(stacktest.Options{})
	var list []*Device
	for i, n := range []*stacktest.NIC{na, nb} {
		addr := netip.AddrFrom4([4]byte{10, 118, 110, byte(guestnet.DevmemHost + i + 1)})
		s := testkit.Must(stack.New(n, n, stack.Options{Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)}}))(t)
		d := &Device{Index: i, Guests: 2}
		testkit.OK(t, d.take(&devmemtool.Device{Device: s, Queues: 4, GPUs: []devmemtool.GPU{{Size: 4 << 20}},
			Memory: plain.MapMemory(func(_ int, off, size uint64) ([]byte, error) {
				return n.Memory()[off:][:size], nil
			})}, addr))
		list = append(list, d)
	}
	t.Cleanup(func() {
		for _, d := range list {
			testkit.OK(t, errors.Join(d.Close(), d.Close()))
		}
		goleak.VerifyNone(t, ignore)
	})
	return list[0], list[1]
}

func TestMemoryIsApartAndBounded(t *testing.T) {
	d, _ := pair(t)
	x := testkit.Must(d.Alloc(1 << 20))(t)
	y, err := d.Alloc(3 << 20)
	if err != nil || y.Buffer.Offset() != 1<<20 {
		t.Fatalf("%+v, %v", y, err)
	}
	testkit.ErrorIs(t, testkit.Err(d.Alloc(devmem.PageSize)), syscall.ENOMEM)
	var _ interface {
		io.ReaderAt
		io.WriterAt
	} = x
	for _, m := range []*Memory{x, y} {
		if n, err := m.WriteAt(fmt.Appendf(nil, "at %07d", m.Buffer.Offset()), 10); n != 10 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	b := make([]byte, 10)
	for m, want := range map[*Memory]string{x: "at 0000000", y: "at 1048576"} {
		if n, err := m.ReadAt(b, 10); n != 10 || err != nil || string(b) != want {
			t.Errorf("%d, %v, %q", n, err, b)
		}
	}
	if n, err := x.ReadAt(b, 1<<20-4); n != 4 || err != io.EOF {
		t.Errorf("over the end: %d, %v", n, err)
	}
	if n, err := x.WriteAt(b, 1<<20-4); n != 4 || err != io.ErrShortWrite {
		t.Errorf("over the end: %d, %v", n, err)
	}
	for _, off := range []int64{-1, 1<<20 + 1} {
		testkit.ErrorIs(t, testkit.Err(x.ReadAt(b, off)), syscall.EINVAL, "at %d", off)
	}
}

func TestGuestsFindEachOther(t *testing.T) {
	to, from := pair(t)
	const text = "from GPU to GPU"
	sent := make(chan error, 1)
	refused := make(chan struct{})
	go func() {
		_, err := from.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(from.AddrOf(0), 5201))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("nobody listens yet: %w", err)
		} else {
			err = nil
		}
		close(refused)
		m, aerr := from.Alloc(1 << 20)
		if err = errors.Join(err, aerr); err != nil {
			sent <- err
			return
		}
		_, werr := m.WriteAt([]byte(text), 5000)
		b, berr := from.BindTX(m.Buffer)
		c, derr := from.DialGuest(t.Context(), 0, 5201)
		if err := errors.Join(werr, berr, derr); err != nil {
			sent <- err
			return
		}
		_, err = c.SendDevmem(b.ID(), []devmem.Range{{Off: 5000, Len: uint64(len(text))}})
		_, _, cerr := c.ReadCompletion(time.Time{})
		sent <- errors.Join(err, cerr, c.Close())
	}()
	<-refused
	l := testkit.Must(to.ListenGPU(5201, 2<<20))(t)
	c, err := l.Accept()
	testkit.OK(t, err)
	frags := make([]devmem.Frag, 4)
	var got string
	for {
		_, n, linear, err := c.(devmem.Conn).RecvDevmem(frags, make([]byte, 100), 0)
		if err == io.EOF {
			break
		}
		if err != nil || linear != 0 {
			t.Fatalf("%d linear bytes, %v", linear, err)
		}
		for _, f := range frags[:n] {
			b := make([]byte, f.Size)
			testkit.Must(l.Memory.ReadAt(b, int64(f.Off)))(t)
			got += string(b)
		}
	}
	testkit.Equal(t, "received", got, text)
	testkit.OK(t, errors.Join(c.Close(), <-sent))
	testkit.ErrorIs(t, testkit.Err(to.ListenGPU(5202, 1<<20)), syscall.EEXIST)
}

func TestDialEndsWithItsContextAndOnErrors(t *testing.T) {
	d, _ := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.ErrorSays(t, testkit.Err(d.DialGuest(ctx, 1, 5201)), "guest1")
	d.Addr = netip.MustParseAddr("10.9.9.9") // no address of d's stack
	testkit.ErrorIs(t, testkit.Err(d.DialGuest(t.Context(), 1, 5201)), syscall.EADDRNOTAVAIL)
}

func TestProgramEndsWithItsDeviceClosed(t *testing.T) {
	ours := errors.New("ours")
	open := func(d *Device) func(context.Context) (*Device, error) {
		return func(context.Context) (*Device, error) { return d, nil }
	}
	for _, want := range []error{nil, ours} {
		d, _ := pair(t)
		err := run(t.Context(), open(d), func(context.Context, *Device) error { return want })
		testkit.ErrorIs(t, err, want)
		if _, err := d.Listen(netip.AddrPortFrom(d.Addr, 1)); err == nil {
			t.Error("the device is open")
		}
	}
	err := run(t.Context(), func(context.Context) (*Device, error) { return nil, ErrNoGuest }, nil)
	testkit.ErrorIs(t, err, ErrNoGuest)
	d, _ := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	err = run(ctx, open(d), func(_ context.Context, d *Device) error {
		l, err := d.ListenGPU(5201, 1<<20)
		if err != nil {
			t.Error(err)
			return err
		}
		cancel()
		_, err = l.AcceptConn()
		return err
	})
	if err == nil || !strings.HasPrefix(err.Error(), "interrupted: ") {
		t.Errorf("%v", err)
	}
}

func TestLingerOfZeroAborts(t *testing.T) {
	a, b := pair(t)
	l := testkit.Must(a.ListenGPU(5201, 1<<20))(t)
	x := testkit.Must(b.DialGuest(t.Context(), 0, 5201))(t)
	y := testkit.Must(l.AcceptConn())(t)
	testkit.OK(t, errors.Join(x.SetLinger(0), x.Close()))
	testkit.ErrorIs(t, testkit.Err(y.Read(make([]byte, 1))), syscall.ECONNRESET)
	testkit.OK(t, y.Close())
}
