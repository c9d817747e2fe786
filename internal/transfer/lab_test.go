package transfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is two guests in this process, each with a GPU and a vnic NIC.
type world struct {
	t     testing.TB
	a, b  *guest
	ports *atomic.Uint32
}

type options struct {
	mtu     int
	gpuSize uint64
	pairs   int
	bad     lab.Impairment
}

type guest struct {
	t    testing.TB
	gpu  *gpumem.GPU
	ram  []byte
	port *nic.Port
	drv  *driver.NIC
	node *Node
	new  string // the result of holds when nothing is prepared
	end  Guest  // node, or a Remote of it
	v4   netip.Addr
	v6   netip.Addr
}

func on(g Guest, op func(context.Context, Guest) error) func(context.Context) error {
	return func(ctx context.Context) error { return op(ctx, g) }
}

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	o.pairs = cmp.Or(o.pairs, 2)
	o.gpuSize = cmp.Or(o.gpuSize, 16<<20)
	d := lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: o.pairs, NICOptions: lab.NICOptions{MTU: o.mtu}}, o.gpuSize)
	d.Impair(o.bad)
	l := testkit.Must(lab.Open(d, lab.Options{Log: labtest.Log(t)}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	w := &world{t: t, ports: new(atomic.Uint32)}
	w.ports.Store(5000)
	w.a, w.b = newGuest(t, l.Port(0), o), newGuest(t, l.Port(1), o)
	return w
}

func newGuest(t testing.TB, p *lab.Port, o options) *guest {
	t.Helper()
	g := &guest{t: t, v4: p.Addr4.Addr(), v6: p.Addr6.Addr(), gpu: p.GPU().GPU, port: p.NIC()}
	g.ram = testkit.Must(unix.Mmap(g.gpu.FD(), 0, int(o.gpuSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() { _ = unix.Munmap(g.ram) })
	g.drv = testkit.Must(p.InProcess(driver.Options{QueuePairs: o.pairs, HostQueues: 1}))(t)
	loss := PoolLoss
	if o.bad.Lossy() {
		loss = LinkLoss
	}
	g.node = testkit.Must(Open(g.drv, []netip.Prefix{p.Addr4, p.Addr6}, nil, p.MTU, loss, ProcStat))(t)
	g.end, g.new = g.node, g.holds()
	t.Cleanup(func() {
		if err := g.node.Close(); err != nil {
			t.Errorf("close guest %s: %v", p.Name, err)
		}
	})
	return g
}

func (w *world) in(t testing.TB) *world {
	a, b := *w.a, *w.b
	a.t, b.t = t, t
	return &world{t: t, a: &a, b: &b, ports: w.ports}
}

type trial struct {
	mode  string
	v6    bool
	size  uint64
	pages uint64 // of the pool; 0: 1024
	queue int    // 0: 1
	hold  uint64
	stall int
	seed  uint64
}

const dataOff = 8 << 20 // offset of the data in each GPU's memory; the receiver's pool lies below

func (w *world) prepares(x trial) (send, recv PrepareArgs) {
	port := uint16(w.ports.Add(1))
	from, to := netip.AddrPortFrom(w.a.v4, port), netip.AddrPortFrom(w.b.v4, port)
	if x.v6 {
		from, to = netip.AddrPortFrom(w.a.v6, port), netip.AddrPortFrom(w.b.v6, port)
	}
	x.pages = cmp.Or(x.pages, 1024)
	x.queue = cmp.Or(x.queue, 1)
	whole := (x.size + 4095) &^ 4095
	send = PrepareArgs{Mode: x.mode, Send: true, GPU: 0, Off: dataOff, Bytes: whole, Len: x.size, Seed: x.seed,
		Local:        from,
		Remote:       to,
		StallSeconds: x.stall}
	recv = PrepareArgs{Mode: x.mode, GPU: 1, Off: dataOff, Bytes: whole, Len: x.size, Seed: ^x.seed, Local: to,
		Remote:    from,
		PoolBytes: x.pages << 12, Queues: []int{x.queue}, Hold: x.hold, StallSeconds: x.stall}
	return send, recv
}

func (w *world) connect(ctx context.Context, send, recv PrepareArgs) error {
	if err := both(ctx, func(ctx context.Context) error { return Prepare(ctx, w.a.end, send) },
		func(ctx context.Context) error { return Prepare(ctx, w.b.end, recv) }); err != nil {
		return err
	}
	if err := Listen(ctx, w.b.end); err != nil {
		return err
	}
	return both(ctx, on(w.a.end, Connect), on(w.b.end, Accept))
}

func (g *guest) send(ctx context.Context) error    { return testkit.Err(Send(ctx, g.end)) }
func (g *guest) receive(ctx context.Context) error { return testkit.Err(Receive(ctx, g.end)) }

func (w *world) moves() {
	w.t.Helper()
	testkit.OK(w.t, both(w.t.Context(), w.a.send, w.b.receive))
}

func (w *world) move(ctx context.Context) (ra, rb Result, err error) {
	err = both(ctx, func(ctx context.Context) (err error) { ra, err = Send(ctx, w.a.end); return err },
		func(ctx context.Context) (err error) { rb, err = Receive(ctx, w.b.end); return err })
	return ra, rb, err
}

func (w *world) finish() {
	w.t.Helper()
	testkit.OK(w.t, errors.Join(Finish(w.t.Context(), w.a.end), Finish(w.t.Context(), w.b.end)))
}

func (w *world) end() {
	w.t.Helper()
	w.finish()
	w.a.empty()
	w.b.empty()
}

func (w *world) run(x trial) (ra, rb Result) {
	w.t.Helper()
	send, recv := w.prepares(x)
	testkit.OK(w.t, w.connect(w.t.Context(), send, recv))
	ra, rb, err := w.move(w.t.Context())
	if err != nil {
		w.t.Fatalf("%v\n  A %s\n  B %s", err, State(w.t.Context(), w.a.end), State(w.t.Context(), w.b.end))
	}
	w.check(recv, send.Seed)
	if ra.Bytes != x.size || rb.Bytes != x.size {
		w.t.Errorf("%d bytes sent, %d received, of %d", ra.Bytes, rb.Bytes, x.size)
	}
	w.end()
	return ra, rb
}

func (w *world) check(p PrepareArgs, seed uint64) {
	w.t.Helper()
	got := w.b.ram[p.Off:][:p.Bytes]
	want := make([]byte, p.Bytes)
	gpumem.FillPattern(want[:p.Len], seed, 0)
	for i := p.Len; i < p.Bytes; i++ {
		want[i] = byte(p.Seed)
	}
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			w.t.Fatalf("byte %d of %d is %#x, not %#x (poison %#x)", i, p.Len, got[i], want[i], byte(p.Seed))
		}
	}
}

func (g *guest) empty() {
	g.t.Helper()
	testkit.Equal(g.t, "left", g.holds(), g.new)
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	if g.node.now != nil {
		g.t.Error("a transfer is prepared")
	}
}

// both runs f and g concurrently, and waits for both. The first error cancels the other's context, and is returned.
func both(ctx context.Context, f, g func(context.Context) error) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return f(ctx) })
	eg.Go(func() error { return g(ctx) })
	return eg.Wait()
}
