package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/testkit"
)

// agents has the hosts by the guest's hostname, because all agents of a process share the operations of agent.Register.
var agents struct {
	sync.Mutex
	hosts map[string]*host
}

func init() {
	agents.hosts = map[string]*host{}
	for name := range new(host).ops() {
		agent.Register(name, func(ctx context.Context, args json.RawMessage) (any, error) {
			agents.Lock()
			h := agents.hosts[agent.EnvOf(ctx).Config.Hostname]
			agents.Unlock()
			return h.ops()[name](ctx, args)
		})
	}
}

// remote starts an agent for a guest in this process, and returns a Remote of its Node 0.
func (g *guest) remote(t *testing.T, name string) (Remote, *host) {
	t.Helper()
	node := g.node
	h := &host{open: func(_ context.Context, s SetupArgs) (*Node, SetupResult, error) {
		if len(s.Addrs) == 0 {
			return nil, SetupResult{}, errors.New("no address")
		}
		r := SetupResult{MAC: g.drv.MAC().String(), QueuePairs: g.drv.QueuePairs()}
		for _, x := range g.drv.GPUs() {
			r.GPUs = append(r.GPUs, GPU{ID: x.ID, Size: x.Size})
		}
		return node, r, nil
	}}
	agents.Lock()
	agents.hosts[name] = h
	agents.Unlock()
	up, down := net.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- agent.Serve(context.Background(), down, agent.Env{Config: agent.Config{Hostname: name}})
		_ = down.Close()
	}()
	c := agent.NewClient(up)
	t.Cleanup(func() {
		_ = c.Call(context.Background(), "poweroff", nil, nil)
		_ = c.Close()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Log(err)
		}
	})
	return Remote{Agent: c}, h
}

func TestRemoteGuests(t *testing.T) {
	testkit.Slow(t)
	ignore := goleak.IgnoreCurrent()
	t.Run("world", func(t *testing.T) {
		w := newWorld(t, options{})
		ra, _ := w.a.remote(t, "a")
		rb, _ := w.b.remote(t, "b")
		w.a.end, w.b.end = ra, rb
		ctx := t.Context()

		send, _ := w.prepares(trial{mode: Devmem, size: 1 << 20})
		testkit.ErrorSays(t, Prepare(ctx, ra, send), setupName)
		testkit.ErrorSays(t, Finish(ctx, ra), setupName)
		if s := State(ctx, ra); !strings.HasPrefix(s, "unknown: ") {
			t.Errorf("state %q", s)
		}
		testkit.ErrorSays(t, testkit.Err(ra.Setup(ctx, SetupArgs{})), "no address")
		for _, x := range []struct {
			r Remote
			g *guest
		}{{ra, w.a}, {rb, w.b}} {
			res, err := x.r.Setup(ctx, SetupArgs{Addrs: []netip.Prefix{netip.PrefixFrom(x.g.v4, 24)}, MTU: 1500,
				QueuePairs: 2,
				Loss:       LinkLoss})
			if err != nil || res.MAC != x.g.drv.MAC().String() || len(res.GPUs) != 1 || res.GPUs[0].Size != x.g.gpu.Size() {
				t.Fatalf("%+v, %v", res, err)
			}
			_, err = x.r.Setup(ctx, SetupArgs{Addrs: []netip.Prefix{netip.PrefixFrom(x.g.v4, 24)}})
			testkit.ErrorSays(t, err, "set up already")
		}
		for _, mode := range modes {
			for _, size := range []uint64{1, 3<<20 + 5} {
				w.run(trial{mode: mode, size: size, v6: size > 1, seed: size})
			}
		}
		testkit.ErrorSays(t, Prepare(ctx, ra, PrepareArgs{Mode: "none"}), "neither")

		// The guests' calls may run on for a moment after the host has cancelled them.
		for range 5 {
			send, recv := w.prepares(trial{mode: Devmem, size: 4 << 20, pages: 128, hold: 1 << 40, seed: 7})
			testkit.OK(t, w.connect(ctx, send, recv))
			part, cancel := context.WithCancel(ctx)
			done := start(part, func(ctx context.Context) error { return both(ctx, w.a.send, w.b.receive) })
			testkit.Eventually(t, "operations", func() bool { return w.a.busy() > 0 && w.b.busy() > 0 })
			if s := State(ctx, rb); !strings.Contains(s, "ESTABLISHED") {
				t.Errorf("state %q", s)
			}
			testkit.Eventually(t, "all 128 pages are held by the one connection", func() bool {
				list := testkit.Must(Holders(ctx, rb))(t)
				return len(list) == 1 && list[0].Tokens == 128 && list[0].Local.Addr() == w.b.v4
			})
			cancel()
			testkit.ErrorIs(t, <-done, context.Canceled)
			w.end()
		}
		for range 5 {
			send, _ = w.prepares(trial{mode: Devmem, size: 4 << 20})
			part, cancel := context.WithCancel(ctx)
			done := start(part, func(ctx context.Context) error { return Prepare(ctx, ra, send) })
			testkit.Eventually(t, "Prepare", func() bool { return w.a.busy() > 0 || len(done) > 0 })
			cancel()
			<-done
			w.finish()
			w.a.empty()
		}
		w.run(trial{mode: Devmem, size: 1 << 20})
		testkit.OK(t, errors.Join(ra.Close(ctx), rb.Close(ctx), ra.Close(ctx)))
		if w.a.drv.Err() == nil {
			t.Error("the NIC is still open")
		}
	})
	goleak.VerifyNone(t, ignore)
}

func TestOpsWithoutNIC(t *testing.T) {
	h := &host{open: func(context.Context, SetupArgs) (*Node, SetupResult, error) {
		return nil, SetupResult{}, errors.New("no NIC")
	}}
	setup := func(args string) error { return testkit.Err(h.ops()[setupName](t.Context(), json.RawMessage(args))) }
	testkit.ErrorSays(t, setup(`{"addrs":["10.0.0.1/24"]}`), "no NIC")
	testkit.ErrorSays(t, setup(`[`), "unexpected end of JSON input")
	testkit.ErrorSays(t, testkit.Err(h.ops()["transfer.prepare"](t.Context(), nil)), setupName)
	testkit.Must(h.ops()[closeName](t.Context(), nil))(t)
}

func TestNodesOfOneNIC(t *testing.T) {
	w := newWorld(t, options{})
	ra, _ := w.a.remote(t, "several a")
	rb, hb := w.b.remote(t, "several b")
	ctx := t.Context()
	a, b := [2]Remote{ra, {Agent: ra.Agent, Node: 7}}, [2]Remote{rb, {Agent: rb.Agent, Node: 7}}
	for i := range a {
		for g, r := range map[*guest]Remote{w.a: a[i], w.b: b[i]} {
			args := SetupArgs{Interface: "nic", Addrs: []netip.Prefix{netip.PrefixFrom(g.v4, 24)}}
			res := testkit.Must(r.Setup(ctx, args))(t)
			testkit.Equal(t, "MAC", res.MAC, g.drv.MAC().String())
			testkit.ErrorSays(t, testkit.Err(r.Setup(ctx, SetupArgs{})), "set up already")
		}
	}
	// The first Nodes' transfer continues meanwhile.
	send, recv := w.prepares(trial{mode: Devmem, size: 4 << 20, pages: 128, hold: 1 << 40, seed: 1})
	w.a.end, w.b.end = a[0], b[0]
	testkit.OK(t, w.connect(ctx, send, recv))
	part, cancel := context.WithCancel(ctx)
	defer cancel()
	first := start(part, func(ctx context.Context) error { return both(ctx, w.a.send, w.b.receive) })
	w.arrived(100 << 10)
	back, there := w.prepares(trial{mode: Copy, size: 1 << 20, seed: 2})
	back.GPU, back.Off, there.GPU, there.Off = there.GPU, 14<<20, back.GPU, 14<<20
	back.Local, back.Remote, there.Local, there.Remote = there.Local, there.Remote, back.Local, back.Remote
	testkit.OK(t, errors.Join(Prepare(ctx, b[1], back), Prepare(ctx, a[1], there), Listen(ctx, a[1])))
	testkit.OK(t, both(ctx, on(b[1], Connect), on(a[1], Accept)))
	testkit.OK(t, both(ctx, func(ctx context.Context) error { return testkit.Err(Send(ctx, b[1])) },
		func(ctx context.Context) error { return testkit.Err(Receive(ctx, a[1])) }))
	testkit.OK(t, errors.Join(Finish(ctx, a[1]), Finish(ctx, b[1])))
	testkit.Equal(t, "ends of the first", len(first), 0)
	cancel()
	testkit.ErrorIs(t, <-first, context.Canceled)
	w.finish()

	testkit.OK(t, errors.Join(a[1].Close(ctx), b[1].Close(ctx)))
	testkit.ErrorSays(t, Listen(ctx, a[1]), setupName)
	testkit.Equal(t, "the first's NIC", w.a.drv.Err(), nil)
	testkit.OK(t, errors.Join(a[0].Close(ctx), b[0].Close(ctx)))
	testkit.Equal(t, "NICs that are open", len(hb.first)+len(hb.nodes), 0)
}
