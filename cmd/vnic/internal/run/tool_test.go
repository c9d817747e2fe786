package run

import (
	"context"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/internal/testkit"
)

// tools is two guests in which nothing runs but what a test starts: the tool devmem.
type tools struct {
	*testing.T
	*runner
	iface string
}

func newTools(t *testing.T, pair, iface string) *tools {
	t.Helper()
	return &tools{t, booted(t, pair).runner, iface}
}

// run runs devmem in a guest.
func (x *tools) run(ctx context.Context, e *end, args ...string) (r agent.ExecResult, err error) {
	args = append([]string{"/bin/devmem", args[0], "-f", x.iface}, args[1:]...)
	err = e.qemu.Agent().Call(ctx, "exec", agent.Exec{Args: args}, &r)
	return r, err
}

// receiver starts devmem recv in guest B.
func (x *tools) receiver(ctx context.Context, args ...string) <-chan agent.ExecResult {
	done := make(chan agent.ExecResult, 1)
	addr := x.ends[1].addr(4).Addr().String()
	go func() {
		r, err := x.run(ctx, x.ends[1], append([]string{"recv", "-s", addr, "-p", "5201", "-v", "7"}, args...)...)
		if err != nil && ctx.Err() == nil {
			x.Error(err)
		}
		done <- r
	}()
	return done
}

// send has guest A send as soon as the receiver listens.
func (x *tools) send(ctx context.Context, size string) agent.ExecResult {
	x.Helper()
	args := []string{"send", "-s", x.ends[1].addr(4).Addr().String(), "-c", x.ends[0].addr(4).Addr().String(), "-p",
		"5201", "-v", "7", "-b", size}
	for {
		r, err := x.run(ctx, x.ends[0], args...)
		if err != nil {
			if ctx.Err() == nil {
				x.Error(err)
			}
			return r
		}
		if !strings.Contains(r.Stderr, "connection refused") && !strings.Contains(r.Stderr, "no route to host") {
			return r
		}
	}
}

// transfer sends 64 MiB, which must arrive.
func (x *tools) transfer() {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.Context(), 2*time.Minute)
	defer cancel()
	sctx, refused := context.WithCancel(ctx)
	defer refused()
	got, sent := x.receiver(ctx, "-L"), make(chan agent.ExecResult, 1)
	go func() { sent <- x.send(sctx, "64M") }()
	r := <-got
	if r.Status != 0 {
		refused() // nobody listens any more
	}
	if s := <-sent; s.Status != 0 && r.Status == 0 {
		x.Fatalf("send: %+v", s)
	}
	if r.Status != 0 || !strings.Contains(r.Stdout, "Validated buffer") ||
		!strings.Contains(r.Stderr, "total_received=67108864\n") ||
		!strings.Contains(r.Stderr, "linear_received=0\n") {
		x.Fatalf("recv: %+v", r)
	}
	for _, e := range x.ends {
		testkit.OK(x, e.empty())
	}
}

// The same program, written against devmem only, on our stack and on the kernel's.
//
// Invariant: guest-images: The same tool works on either stack.
func TestToolMovesBytesWithEitherNIC(t *testing.T) {
	for nic, iface := range map[string]string{NICVirtio: "virtio", NICGVE: "eth0"} {
		t.Run(nic, func(t *testing.T) {
			x := newTools(t, nic, iface)
			x.transfer()
			x.transfer()
		})
	}
}

// A receiver that gives no token back is killed when its pool is dry and its connection stalls. The
// kernel and the NIC then have what they had: there is room for one window only on the GPU, and the
// next receiver gets it.
//
// Invariant: guest-images: A receiver that is killed leaves nothing with kernel and NIC.
func TestKilledReceiverLeavesNothing(t *testing.T) {
	x := newTools(t, NICGVE+unused, "eth0")
	b := x.ends[1]
	ctx, kill := context.WithCancel(x.Context())
	defer kill()
	got := x.receiver(ctx, "-H")
	sent := make(chan agent.ExecResult, 1)
	go func() { sent <- x.send(x.Context(), "128M") }()
	received := func() bool { c, _ := b.port.PortCounters(); return c.Rx.DeviceBytes > 0 }
	if !x.until(received) {
		t.Fatal("nothing was received")
	}
	before := x.counters().drops
	if !x.until(func() bool { return x.counters().drops > before }) {
		t.Fatal("nothing was dropped")
	}
	if list, err := b.port.Buffers(); err != nil || len(list) == 0 {
		t.Errorf("buffers of a receiver that is alive: %v, %v", list, err)
	}
	kill()
	<-got
	if r := <-sent; r.Status != 1 || !strings.Contains(r.Stderr, "reset by peer") &&
		!strings.Contains(r.Stderr, "broken pipe") {
		t.Errorf("send to a receiver that was killed: %+v", r)
	}
	if !x.until(func() bool { return x.ends[0].empty() == nil && b.empty() == nil }) {
		t.Error(b.empty())
	}
	x.transfer()
}

// until waits for what a guest does.
func (x *tools) until(done func() bool) bool {
	ctx, cancel := context.WithTimeout(x.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); !done(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
