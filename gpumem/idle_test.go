package gpumem

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestDigestIdle(t *testing.T) {
	g, _, e := bigRig(t, 40)
	memory(t, g, func(b []byte) { FillAt(b, 1, 0) })
	all := []Extent{{0, 40 << 20}}
	want := testkit.Must(e.Digest(t.Context(), 0, all))(t)
	for _, before := range []bool{true, false} {
		hurry, begun := make(chan struct{}), make(chan struct{})
		go func() {
			if !before {
				<-begun
			}
			close(hurry)
		}()
		if before {
			<-hurry
		}
		close(begun)
		testkit.Equal(t, "digest", testkit.Must(e.DigestIdle(t.Context(), 0, all, hurry))(t), want)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	testkit.ErrorIs(t, testkit.Err(e.DigestIdle(ctx, 0, all, make(chan struct{}))), gone)
}

// An unprivileged thread can leave SCHED_IDLE only if RLIMIT_NICE permits its nice value (sched(7)).
func TestThreadIsIdleUntilThereIsAHurry(t *testing.T) {
	var limit unix.Rlimit
	testkit.OK(t, unix.Getrlimit(unix.RLIMIT_NICE, &limit))
	nice := testkit.Must(unix.SchedGetAttr(0, 0))(t).Nice
	after := uint32(unix.SCHED_NORMAL)
	if unix.Geteuid() != 0 && limit.Cur < uint64(20-nice) {
		after = unix.SCHED_IDLE
	}
	hurry, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		th := idleThread{hurry: hurry}
		th.begin(nil)
		policy := func(what string, want uint32) {
			th.look()
			a, err := unix.SchedGetAttr(0, 0)
			testkit.NoError(t, err)
			testkit.Equal(t, what, a.Policy, want)
		}
		policy("policy before", unix.SCHED_IDLE)
		close(hurry)
		policy("policy after", after)
	}()
	<-ended
}
