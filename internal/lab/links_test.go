package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// linked describes two guests with two GPUs each: payload of gpu0 is direct, of gpu1 bounced.
func linked() (d lab.Description) {
	for _, name := range []string{"a", "b"} {
		in := func(s string) string { return name + "." + s }
		d.Guests = append(d.Guests, lab.Guest{Name: name,
			Sockets:  []lab.Socket{{Name: "s0"}},
			Switches: []lab.Switch{{Name: "sw0", Slot: lab.Slot{Below: "s0"}}},
			NICs: []lab.NIC{{Name: in("nic0"), Model: lab.Virtio, QueuePairs: 3, Slot: lab.Slot{Below: "sw0"},
				Rate: 25e9}},
			GPUs: []lab.GPU{{Name: in("gpu0"), Memory: 4 << 20, Slot: lab.Slot{Below: "sw0"}},
				{Name: in("gpu1"), Memory: 4 << 20, Slot: lab.Slot{Below: "sw0", Redirect: true}}}})
	}
	return d
}

// sendFrom sends n bytes from a binding, or from host memory if b is nil, and waits until the peer closes.
func sendFrom(ctx context.Context, s *stack.Stack, from, to netip.AddrPort, b devmem.Binding, n int) error {
	c, err := s.Dial(ctx, from, to)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetStallLimit(time.Minute)
	if b == nil {
		_, err = c.Write(make([]byte, n))
		err = errors.Join(err, c.CloseWrite())
	} else {
		_, err = c.SendDevmem(b.ID(), []devmem.Range{{Len: uint64(n)}})
		err = errors.Join(err, c.CloseWrite())
	}
	if err == nil {
		_, err = io.Copy(io.Discard, c)
	}
	return err
}

// take accepts a connection and reads it to its end. It returns the number of bytes, and io.EOF or another error.
func take(l devmem.Listener) (n int, err error) {
	c, err := l.AcceptConn()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetStallLimit(time.Minute)
	frags, linear := make([]devmem.Frag, 64), make([]byte, 64<<10)
	for {
		got, k, _, err := c.RecvDevmem(frags, linear, 0)
		n += got
		if err != nil {
			return n, err
		}
		var tokens []devmem.TokenRange
		for _, f := range frags[:k] {
			if f.Kind == devmem.Dmabuf {
				tokens = append(tokens, devmem.TokenRange{Start: f.Token, Count: 1})
			}
		}
		if len(tokens) > 0 {
			if _, err := c.DontNeed(tokens); err != nil {
				return n, err
			}
		}
	}
}

func linkedStacks(t *testing.T, w *lab.Lab) (stacks [2]*stack.Stack) {
	for i := range stacks {
		n := testkit.Must(w.Port(i).InProcess(driver.Options{QueuePairs: 3}))(t)
		var err error
		stacks[i], err = stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{w.Port(i).Addr4}})
		testkit.OK(t, err)
	}
	return stacks
}

// transferred is a transfer of n bytes from one guest (its index is in from) to the other, between their GPUs (their
// index is in gpu), or, if gpu is -1, between their host memories.
type transferred struct {
	from, gpu, n int
	local, to    netip.AddrPort
	send         devmem.Binding
	listener     devmem.Listener
}

// prepare binds GPU memory, unless gpu is -1, and listens.
func (x *transferred) prepare(t *testing.T, w *lab.Lab, stacks [2]*stack.Stack) {
	to := 1 - x.from
	port := uint16(10 + x.gpu)
	x.local = netip.AddrPortFrom(w.Port(x.from).Addr4.Addr(), 100+port)
	x.to = netip.AddrPortFrom(w.Port(to).Addr4.Addr(), port)
	if x.gpu >= 0 {
		gpu := func(guest int) int { return w.Machine(guest).GPUs[x.gpu].ID() }
		source := testkit.Must(stacks[x.from].Register(gpu(x.from), 0, 1<<20))(t)
		x.send = testkit.Must(stacks[x.from].BindTX(source))(t)
		into := testkit.Must(stacks[to].Register(gpu(to), 1<<20, 2<<20))(t)
		testkit.Must(stacks[to].BindRX(into, 1+x.gpu))(t)
		testkit.Must(stacks[to].AddFlow(devmem.Flow{Dst: x.to, Queue: 1 + x.gpu}))(t)
	}
	x.listener = testkit.Must(stacks[to].Listen(x.to))(t)
}

// run makes the transfer, and returns the errors of both ends.
func (x *transferred) run(ctx context.Context, stacks [2]*stack.Stack) error {
	sent := make(chan error, 1)
	go func() { sent <- sendFrom(ctx, stacks[x.from], x.local, x.to, x.send, x.n) }()
	n, err := take(x.listener)
	if err == io.EOF && n == x.n {
		err = nil
	}
	return errors.Join(err, x.listener.Close(), <-sent)
}

func payload(c *control.DirCounters) uint64 { return c.DeviceBytes + c.GPUFileBytes + c.HostBytes }

// carried returns the payload that the ports have counted on each edge, by the edge's name.
func carried(ports ...*lab.Port) map[string]uint64 {
	edges, m := make(map[*lab.Edge]lab.Carried), make(map[string]uint64)
	for _, p := range ports {
		p.Carry(edges)
	}
	for e, c := range edges {
		m[e.Name] = c.Payload
	}
	return m
}

// Invariant: lab: The bytes counted on links equal the bytes that the NICs' queues count, each byte
// on each link that it crosses.
func TestLinksCarryWhatQueuesCount(t *testing.T) {
	testkit.LeavesNothing(t)
	w, err := lab.Open(linked(), lab.Options{})
	testkit.OK(t, err)
	ports := w.Ports()
	stacks := linkedStacks(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	all := []*transferred{{gpu: 0, n: 1 << 20}, {gpu: 1, n: 1 << 19}, {gpu: -1, n: 1 << 18},
		{from: 1, gpu: -1, n: 1 << 17}}
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for i, x := range all {
		x.prepare(t, w, stacks)
		wg.Go(func() { errs[i] = x.run(ctx, stacks) })
	}
	over := make(chan struct{})
	most := make(map[string]uint64)
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			for name, n := range carried(ports...) {
				most[name] = max(most[name], n)
			}
		}
	})
	wg.Wait()
	close(over)
	looking.Wait()
	testkit.OK(t, errors.Join(append(errs, stacks[0].Close(), stacks[1].Close(), w.Close())...))

	got, want := carried(ports...), make(map[string]uint64)
	for i, p := range ports {
		name := []string{"a.", "b."}[i]
		all, err := p.NIC().PortCounters()
		testkit.OK(t, err)
		rx, tx := all.Rx, all.Tx
		var rxTo, txTo [2]struct{ direct, bounced uint64 }
		for q := range p.QueuePairs {
			inTo, outTo := p.NIC().QueueTraffic(q)
			for k := range rxTo {
				rxTo[k].direct += inTo.Direct[2*i+k]
				rxTo[k].bounced += inTo.Bounced[2*i+k]
				txTo[k].direct += outTo.Direct[2*i+k]
				txTo[k].bounced += outTo.Bounced[2*i+k]
			}
		}
		if txTo[0].bounced+txTo[1].direct+rxTo[0].bounced+rxTo[1].direct != 0 || txTo[1].bounced != tx.BouncedBytes ||
			rxTo[1].bounced != rx.BouncedBytes {
			t.Errorf("%s: sent %v, received %v", name, txTo, rxTo)
		}
		for edge, n := range map[string]uint64{
			"nic0 down": payload(&tx), "nic0 out": payload(&tx), "nic0 up": payload(&rx), "nic0 in": payload(&rx),
			"gpu0 up": txTo[0].direct, "gpu0 down": rxTo[0].direct, "gpu1 up": txTo[1].bounced, "gpu1 down": rxTo[1].bounced,
			"sw0 up": rx.HostBytes + tx.BouncedBytes, "sw0 down": tx.HostBytes + rx.BouncedBytes,
			"s0 memory": tx.HostBytes + tx.BouncedBytes + rx.HostBytes + rx.BouncedBytes,
		} {
			want[name+edge] = n
		}
	}
	for edge, least := range map[string]int{"a.gpu0 up": all[0].n, "b.gpu0 down": all[0].n, "a.gpu1 up": all[1].n,
		"b.gpu1 down": all[1].n, "a.sw0 down": all[1].n + all[2].n, "b.sw0 down": all[1].n + all[3].n} {
		if got[edge] < uint64(least) {
			t.Errorf("%s: %d bytes of %d at least", edge, got[edge], least)
		}
	}
	maps.DeleteFunc(got, func(name string, n uint64) bool { return n == 0 && want[name] == 0 })
	maps.DeleteFunc(want, func(_ string, n uint64) bool { return n == 0 })
	if !maps.Equal(got, want) {
		t.Errorf("links carried %v, not %v", got, want)
	}
	for name, n := range most {
		if n > got[name] {
			t.Errorf("%s: %d bytes on the way, and %d at the end", name, n, got[name])
		}
	}
}

// The NICs are below s1. If a port maps a file for each socket's RAM, payload in the first file crosses the link from
// or to s0; if it maps only one file, payload counts as in s1's RAM.
func TestHostMemoryIsThatOfItsFile(t *testing.T) {
	testkit.LeavesNothing(t)
	const n = 1 << 18
	for _, files := range []int{1, 2} {
		d := linked()
		for i := range d.Guests {
			d.Guests[i].Sockets = []lab.Socket{{Name: "s0"}, {Name: "s1"}}
			d.Guests[i].Switches[0].Below = "s1"
		}
		w := testkit.Must(lab.Open(d, lab.Options{}))(t)
		ports, stacks := w.Ports(), linkedStacks(t, w)
		if files == 2 {
			for _, p := range ports {
				testkit.OK(t, p.Space().Add(dma.Map{IOVA: 1 << 46, Size: 1 << 20, FD: int(testkit.Memfd(t, 1<<20).Fd())}))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		x := &transferred{gpu: -1, n: n}
		x.prepare(t, w, stacks)
		testkit.OK(t, errors.Join(x.run(ctx, stacks), stacks[0].Close(), stacks[1].Close(), w.Close()))
		got := carried(ports...)
		for i, name := range []string{"a.", "b."} {
			c, err := ports[i].NIC().PortCounters()
			testkit.OK(t, err)
			if c.Rx.HostBytes+c.Tx.HostBytes < n {
				t.Fatalf("%+v", c)
			}
			want := map[string]uint64{"s1 memory": c.Rx.HostBytes + c.Tx.HostBytes, "s0 memory": 0, "s0 to s1": 0, "s1 to s0": 0}
			if files == 2 {
				want = map[string]uint64{"s0 memory": want["s1 memory"], "s1 memory": 0, "s0 to s1": c.Tx.HostBytes,
					"s1 to s0": c.Rx.HostBytes}
			}
			for edge, n := range want {
				testkit.Equal(t, fmt.Sprint(files, " files: ", name, edge), got[name+edge], n)
			}
		}
	}
}

// With one connection, the payload on edges is the payload of its flow counters, plus less than 1000 bytes of other
// frames at each port.
func TestLinksCarryWhatFlowCountersCount(t *testing.T) {
	testkit.LeavesNothing(t)
	for gpu := range 2 {
		w := open(t, linked(), lab.Options{})
		stacks := linkedStacks(t, w)
		for _, s := range stacks {
			defer func() { testkit.OK(t, s.Close()) }()
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		x := &transferred{gpu: gpu, n: 1 << 20}
		x.prepare(t, w, stacks)
		var meters [2]uint32
		for i, f := range []control.FlowCounter{{Proto: 6, Local: x.local, Remote: x.to},
			{Proto: 6, Local: x.to, Remote: x.local}} {
			meters[i] = testkit.Must(w.Port(i).NIC().AddFlowCounter(f))(t)
		}
		testkit.OK(t, x.run(ctx, stacks))
		// A packet may be counted only after it has arrived.
		testkit.Eventually(t, "links' payload to equal the flow counters", func() bool {
			same := true
			for i, p := range w.Ports() {
				flow := testkit.Must(p.NIC().ReadFlowCounter(meters[i]))(t)
				edges, want := make(map[*lab.Edge]lab.Carried), make(map[*lab.Edge]uint64)
				p.Carry(edges)
				all, _ := p.NIC().PortCounters()
				other := [2]uint64{payload(&all.Rx) - payload(&flow.Rx), payload(&all.Tx) - payload(&flow.Tx)}
				way, host := lab.Way{GPU: gpu, Bounced: gpu == 1}, lab.ByHost
				add := func(way lab.Way, sends bool, n uint64) {
					for _, l := range p.Loads(way, sends) {
						want[l.Edge] += n * uint64(l.Times)
					}
				}
				n := payload(&flow.Tx)
				if i == 1 {
					n = payload(&flow.Rx)
				}
				add(way, i == 0, n)
				add(host, false, other[0])
				add(host, true, other[1])
				same = same && n >= uint64(x.n) && other[0]+other[1] < 1000
				for e, c := range edges {
					same = same && c.Payload == want[e]
				}
				for e, n := range want {
					same = same && edges[e].Payload == n
				}
			}
			return same
		})
	}
}

func TestRatesOfEdges(t *testing.T) {
	for name, want := range map[string]string{"a.nic0 out": "200Gbit", "a.nic0 in": "200Gbit", "a.nic0 up": "25 GB/s",
		"a.s0 memory": "25 GB/s"} {
		testkit.Equal(t, name, lab.FormatEdgeRate(name, 25e9), want)
	}
}
