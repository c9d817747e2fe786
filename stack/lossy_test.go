package stack_test

import (
	"errors"
	"flag"
	"fmt"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

func TestLossless(t *testing.T) {
	w := newRig(t, stacktest.Options{GPUSize: 16 << 20})
	transfer(t, w, 1, short(8<<20), false, 0, true)
}

// transfer makes A and B send each other n bytes at the same time. With halfClose each of them closes its direction
// when all its sends are complete; without, when it has also received all bytes.
func transfer(t *testing.T, w *rig, seed uint64, n int, v6 bool, linear float64, halfClose bool) {
	t.Helper()
	const half = 8 << 20
	bindRX(t, w.a, 0, half, 0, 1) // port 0 means any; A's connections have ephemeral ports
	bindRX(t, w.b, 0, half, 0, 1)
	atx, btx := bindTX(t, w.a, half, half), bindTX(t, w.b, half, half)
	ca, cb := w.connect(7, v6)
	rb, ra := newReceiver(cb, w.nb.Memory()[:half], seed, n, 64), newReceiver(ca, w.na.Memory()[:half], seed+1, n, 64)
	sa, sb := newSender(ca, atx, w.na.Memory()[half:], seed, n), newSender(cb, btx, w.nb.Memory()[half:], seed+1, n)
	sa.linear, sb.linear = linear, linear
	if !halfClose {
		ra.got, rb.got = make(chan struct{}), make(chan struct{})
		sa.after, sb.after = ra.got, rb.got
	}
	testkit.OK(t, all([]devmem.Conn{ca, cb}, sa.run, sb.run, ra.run, rb.run))
	balanced(t, w.a)
	balanced(t, w.b)
	if rb.device == 0 || ra.device == 0 {
		t.Errorf("no byte came in device memory")
	}
	testkit.OK(t, errors.Join(ca.Close(), cb.Close()))
	for _, s := range []*stack.Stack{w.a, w.b} {
		if st := s.Stats(); st.RxFrameDrops > 0 || st.TxFrameDrops > 0 {
			t.Errorf("dropped: %+v", st)
		}
	}
}

func lossy(seed uint64) stacktest.Options {
	return stacktest.Options{GPUSize: 16 << 20, Seed: seed, Loss: 0.02, Dup: 0.02, Reorder: 0.05}
}

var seeds = flag.Uint64("seeds", 4, "seeds of each case of TestLossy")

// Invariant: stack: Over loss, reordering and duplicates the right bytes arrive, and every page
// comes back.
func TestLossy(t *testing.T) {
	t.Parallel()
	const size = 400 << 10
	for _, v := range []struct {
		name   string
		change func(*stacktest.Options)
		slow   bool
		noGSO  bool
		linear float64
	}{
		{name: "mtu1500", change: func(o *stacktest.Options) {}, noGSO: true},
		{name: "mtu1500-sack", change: func(o *stacktest.Options) { o.Cut = true }, slow: true},
		{name: "mtu1500-cut", change: func(o *stacktest.Options) { o.Merge = true }, noGSO: true, slow: true},
		{name: "mtu9000", change: func(o *stacktest.Options) { o.MTU = 9000; o.Cut = true }},
		{name: "gso-whole", change: func(o *stacktest.Options) {}},
		{name: "gso-cut", change: func(o *stacktest.Options) { o.Cut = true }},
		{name: "gso-cut-merged", change: func(o *stacktest.Options) { o.Cut, o.Merge = true, true }},
		{name: "checksums", change: func(o *stacktest.Options) { o.Cut, o.Checksums = true, true }, linear: 0.2},
		{name: "mixed", change: func(o *stacktest.Options) { o.LinearHead = 300 }, linear: 0.3},
		{name: "small-ring", change: func(o *stacktest.Options) { o.RingSize = 40 }},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/v6=%v", v.name, v6), func(t *testing.T) {
				t.Parallel()
				n := *seeds
				if testing.Short() {
					n = (n + 1) / 2
				}
				if v.slow {
					n = (n + 2) / 3 // without RACK more losses end in a timeout
				}
				for seed := range n {
					t.Run(fmt.Sprint(seed), func(t *testing.T) {
						o := lossy(seed + 1)
						v.change(&o)
						w := newRig(t, o, func(c *stack.Options) {
							c.NoGSO, c.RACK = v.noGSO, !v.slow
						})
						// A gVisor receiver that has closed its own direction sends no SACK (stack.Options).
						transfer(t, w, seed, size, v6, v.linear, v.slow)
						if w.nb.BadSums()+w.na.BadSums() > 0 {
							t.Errorf("%d segments with a bad checksum", w.nb.BadSums()+w.na.BadSums())
						}
					})
				}
			})
		}
	}
}
