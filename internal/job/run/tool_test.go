package run

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/testkit"
)

// tools runs the tool devmem in the two guests of a pair.
type tools struct {
	*testing.T
	*pair
	iface string
}

func newTools(t *testing.T, x *pair, iface string) *tools { return &tools{t, x, iface} }

func (x *tools) run(ctx context.Context, e *end, args ...string) (agent.ExecResult, error) {
	args = append([]string{"/bin/devmem", args[0], "-f", x.iface}, args[1:]...)
	return agent.Run.Call(ctx, e.QEMU.Agent(), agent.Exec{Args: args})
}

// receiver starts devmem recv in guest B, with these further arguments. The channel gets its result.
func (x *tools) receiver(ctx context.Context, args ...string) <-chan agent.ExecResult {
	done := make(chan agent.ExecResult, 1)
	addr := x.s.ends[1].addr.Addr().String()
	go func() {
		r, err := x.run(ctx, x.s.ends[1], append([]string{"recv", "-s", addr, "-p", "5201", "-v", "7"}, args...)...)
		if err != nil && ctx.Err() == nil {
			x.Error(err)
		}
		done <- r
	}()
	return done
}

// send runs devmem send in guest A, which tries to connect until the receiver listens, for limits.Peer at most.
func (x *tools) send(ctx context.Context, size string) agent.ExecResult {
	x.Helper()
	args := []string{"send", "-s", x.s.ends[1].addr.Addr().String(), "-c", x.s.ends[0].addr.Addr().String(), "-p",
		"5201", "-v", "7", "-b", size}
	r, err := x.run(ctx, x.s.ends[0], args...)
	if err != nil && ctx.Err() == nil {
		x.Error(err)
	}
	return r
}

// Bytes of a transfer that is larger than the buffer of devmem, so that pages of the buffer are used again, and of one
// that is smaller.
const (
	moreThanBuffer = 64 << 20
	little         = 4 << 20
)

// transfer sends size bytes from guest A to guest B. It requires that all arrive, equal to the pattern and none in
// host memory, and that both NICs then have no registered buffers.
func (x *tools) transfer(size int) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.Context(), 2*time.Minute)
	defer cancel()
	sctx, refused := context.WithCancel(ctx)
	defer refused()
	got, sent := x.receiver(ctx, "-L"), make(chan agent.ExecResult, 1)
	go func() { sent <- x.send(sctx, strconv.Itoa(size)) }()
	r := <-got
	if r.Status != 0 {
		refused() // send need not try any longer: the receiver has ended
	}
	if s := <-sent; s.Status != 0 && r.Status == 0 {
		x.Fatalf("send: %+v", s)
	}
	if r.Status != 0 || !strings.Contains(r.Stdout, "Validated buffer") ||
		!strings.Contains(r.Stderr, fmt.Sprintf("total_received=%d\n", size)) ||
		!strings.Contains(r.Stderr, "linear_received=0\n") {
		x.Fatalf("recv: %+v", r)
	}
	for _, e := range x.s.ends {
		testkit.OK(x, e.empty())
	}
}

// Invariant: guest-images: The same tool works on either stack.
func TestToolMovesBytesWithEitherNIC(t *testing.T) {
	for nic, iface := range map[string]string{NICVirtio: "virtio", NICGVE: "eth0"} {
		t.Run(nic, func(t *testing.T) {
			x := newTools(t, booted(t, nic), iface)
			x.transfer(moreThanBuffer)
			x.transfer(little)
		})
	}
}

// until waits until done returns true, and returns true; after a minute it returns false.
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
