package transfer

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/testkit"
)

// dry returns how often so far receive queue 1 had too few pages or descriptors to post, and how many packets were
// dropped there.
func (g *guest) dry() (unposted, drops uint64) {
	rx, _ := g.port.QueueCounters(1)
	return g.drv.Stats().Rx[1].Full, rx.Drops
}

func (g *guest) leastPool() uint64 {
	g.t.Helper()
	for n := uint64(1); n <= 1024; n++ {
		buf := testkit.Must(g.node.dev.Register(g.gpu.ID(), 0, n<<12))(g.t)
		b, err := g.node.dev.BindRX(buf, 1)
		if err == nil {
			err = unbind(g.t.Context(), b)
		} else if errors.Is(err, syscall.ENOSPC) {
			b, err = nil, nil
		}
		testkit.OK(g.t, errors.Join(err, buf.Close()))
		if b != nil {
			return n
		}
	}
	g.t.Fatal("no pool is large enough")
	return 0
}

func TestTinyPool(t *testing.T) {
	w := newWorld(t, options{})
	least := w.b.leastPool()
	for _, pages := range []uint64{least, least + 1, least + 13, 2 * least} {
		t.Run(fmt.Sprint(pages), func(t *testing.T) {
			w := w.in(t)
			was, wasDrops := w.b.dry()
			w.run(trial{mode: Devmem, size: 3<<20 + 77, pages: pages, seed: pages})
			unposted, drops := w.b.dry()
			if unposted == was && drops == wasDrops {
				t.Errorf("the pool was never dry: %+v", w.b.drv.Stats().Rx[1])
			}
			t.Logf("%d times no page to post, %d packets dropped", unposted-was, drops-wasDrops)
			w.run(trial{mode: Devmem, size: 1 << 20, seed: 5}) // with 1024 pages, which are enough
		})
	}
}

// TestHeldTokensRunThePoolDry makes the receiver hold the tokens of a part of the pages until the transfer's end.
func TestHeldTokensRunThePoolDry(t *testing.T) {
	w := newWorld(t, options{})
	pages := 2 * w.b.leastPool()
	for _, hold := range []uint64{pages / 4, pages / 2, pages * 3 / 4} {
		t.Run(fmt.Sprint(hold), func(t *testing.T) {
			w := w.in(t)
			was, wasDrops := w.b.dry()
			wasAgain := w.a.node.dev.Stats().Retransmits
			w.run(trial{mode: Devmem, size: 2 << 20, pages: pages, hold: hold << 12, seed: hold})
			if unposted, drops := w.b.dry(); unposted == was && drops == wasDrops {
				t.Error("the pool was never dry")
			}
			if again := w.a.node.dev.Stats().Retransmits - wasAgain; again > 600 {
				// Of some 1,450 segments: a timeout for every second one would send more again.
				t.Errorf("%d segments were sent again", again)
			}
		})
	}
}

func TestStalledConnectionGoesOn(t *testing.T) {
	w := newWorld(t, options{})
	least := w.b.leastPool()
	const size = 4 << 20
	send, recv := w.prepares(trial{mode: Devmem, size: size, pages: least, hold: 1 << 40, stall: 60, seed: 6})
	recv.HoldSeconds = 1
	testkit.OK(t, w.connect(t.Context(), send, recv))
	_, got, err := w.move(t.Context())
	testkit.OK(t, err)
	if got.Bytes != size || got.Stalls != 1 || got.Held == 0 || got.Held > least {
		t.Errorf("%+v of a pool of %d pages", got, least)
	}
	w.end()
}

func TestStallIsAnError(t *testing.T) {
	testkit.Slow(t)
	w := newWorld(t, options{})
	least := w.b.leastPool()
	send, recv := w.prepares(trial{mode: Devmem, size: 4 << 20, pages: least, hold: 1 << 40, stall: 1, seed: 3})
	testkit.OK(t, w.connect(t.Context(), send, recv))
	errs := start(t.Context(), w.a.send) // an error of one end does not cancel the other
	for what, err := range map[string]error{"receiver": w.b.receive(t.Context()), "sender": <-errs} {
		var stall *devmem.StallError
		if !errors.As(err, &stall) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		testkit.ErrorSays(t, err, "no progress for", "ESTABLISHED", "snd{", "rcv{", " of 4194304 bytes")
	}
	for _, g := range []*guest{w.a, w.b} { // the connection's state remains until Finish
		if s := State(t.Context(), g.end); !strings.Contains(s, "snd{") {
			t.Errorf("state %q", s)
		}
	}
	if unposted, _ := w.b.dry(); unposted == 0 {
		t.Error("the pool was never dry")
	}
	for _, b := range w.b.node.dev.Stats().Bindings {
		if !b.TX && (b.Held == 0 || b.Free > driver.PageSize) {
			t.Errorf("pages %+v", b)
		}
	}
	w.end()
	w.run(trial{mode: Devmem, size: 1 << 20, pages: least, seed: 4})
	w.run(trial{mode: Copy, size: 1 << 20, seed: 4})
}
