package transfer

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

func (w *world) ranks() (list [2]Rank) {
	guests := [2]*guest{w.a, w.b}
	port := uint16(w.ports.Add(2))
	for i, g := range guests {
		next := guests[1-i]
		list[i] = Rank{Rank: i, Ranks: 2, GPU: int(g.gpu.ID()), Data: Area{dataOff, 4 << 20}, Pool: Area{0, 4 << 20},
			Scratch: Area{4 << 20, 4 << 20}, Queues: []int{1}, Listen: netip.AddrPortFrom(g.v4, port),
			From: netip.AddrPortFrom(g.v4, port+1), Next: netip.AddrPortFrom(next.v4, port), Timeout: testkit.Patience}
	}
	return list
}

func TestCollectives(t *testing.T) {
	w := newWorld(t, options{})
	ra, _ := w.a.remote(t, "ring a")
	rb, _ := w.b.remote(t, "ring b")
	remotes, guests := [2]Remote{ra, rb}, [2]*guest{w.a, w.b}
	both := func(f func(i int, r Remote) error) {
		t.Helper()
		var errs [2]error
		var work sync.WaitGroup
		for i, r := range remotes {
			work.Go(func() { errs[i] = f(i, r) })
		}
		work.Wait()
		for _, err := range errs {
			testkit.OK(t, err)
		}
	}
	ctx := t.Context()
	for i, r := range remotes {
		testkit.Must(r.Setup(ctx, SetupArgs{Addrs: []netip.Prefix{netip.PrefixFrom(guests[i].v4, 24)}}))(t)
	}
	testkit.ErrorIs(t, testkit.Err(w.a.node.Collective(ctx, CollectiveArgs{Op: AllReduce})), syscall.EINVAL)
	var ranks [2]Rank
	for range 2 {
		ranks = w.ranks() // other ports: the earlier ones stay in use for a minute (TIME_WAIT)
		both(func(i int, r Remote) error { return Join(ctx, r, ranks[i]) })
		testkit.ErrorIs(t, w.a.node.Join(ctx, ranks[0]), syscall.EALREADY)
		testkit.ErrorIs(t, testkit.Err(w.a.node.Collective(ctx, CollectiveArgs{Op: "scan"})), syscall.EINVAL)
		const count = 1000 // elements are 0 to 999 at a, and 10,000 times as much at b
		for _, c := range []struct {
			op    string
			want  [2]uint32 // elements 1 and 501
			guest int       // that has the first half of the result, the other has the second; -1: both have all of it
		}{
			{AllReduce, [2]uint32{10001, 501 * 10001}, -1},
			{ReduceScatter, [2]uint32{10001, 501 * 10001}, 0},
			{AllGather, [2]uint32{1, 501 * 10000}, -1},
			{Broadcast, [2]uint32{10000, 501 * 10000}, -1},
		} {
			for i, g := range guests {
				for k := range count {
					binary.LittleEndian.PutUint32(g.ram[dataOff+4*k:], uint32(k*[2]int{1, 10000}[i]))
				}
			}
			both(func(_ int, r Remote) error {
				res, err := Collective(ctx, r, CollectiveArgs{Op: c.op, Type: devmem.Int32, Count: count, Root: 1})
				if err == nil && (res.Stats.Sent+res.Stats.Received == 0 || res.Stats.Linear > 0 || res.Seconds <= 0) {
					t.Errorf("%s: %+v", c.op, res)
				}
				return err
			})
			for i, g := range guests {
				for half, want := range c.want {
					if c.guest >= 0 && (half == 0) != (i == c.guest) {
						continue
					}
					got := binary.LittleEndian.Uint32(g.ram[dataOff+4*(1+500*half):])
					if got != want {
						t.Errorf("%s: guest %d has %d at element %d, and not %d", c.op, i, got, 1+500*half, want)
					}
				}
			}
		}
		both(func(_ int, r Remote) error { return Leave(ctx, r) })
		both(func(_ int, r Remote) error { return Leave(ctx, r) })
	}
	bad := ranks[0]
	bad.Scratch.Off++
	testkit.ErrorSays(t, w.a.node.Join(ctx, bad), "join: scratch")
	bad = ranks[0]
	bad.Ranks = 0
	testkit.ErrorIs(t, w.a.node.Join(ctx, bad), syscall.EINVAL)
}

func TestRingEnds(t *testing.T) {
	w := newWorld(t, options{})
	ranks := w.ranks()
	ctx, cancel := context.WithCancel(t.Context())
	joined := make(chan error, 1)
	go func() { joined <- w.a.node.Join(ctx, ranks[0]) }()
	cancel()
	testkit.ErrorIs(t, <-joined, context.Canceled)

	go func() { joined <- w.a.node.Join(t.Context(), ranks[0]) }()
	testkit.OK(t, w.b.node.Join(t.Context(), ranks[1]))
	testkit.OK(t, <-joined)
	done := make(chan error, 1)
	go func() {
		_, err := w.a.node.Collective(t.Context(), CollectiveArgs{Op: AllReduce, Type: devmem.Float32, Count: 1e6})
		done <- err
	}()
	testkit.Eventually(t, "it sends", func() bool { return w.a.node.dev.Stats().TxDevmemBytes > 0 })
	testkit.OK(t, w.a.node.Leave(t.Context()))
	if err := <-done; err == nil {
		t.Error("the other rank has done nothing")
	}
}
