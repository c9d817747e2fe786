package nic_test

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/nic"
)

// The second penalty of a receiver that takes nothing is longer, and a penalty ends when the receiver has buffers.
func TestPatience(t *testing.T) {
	p := nic.Patience{Limit: time.Second}
	r, other := newWaitRing(), newWaitRing()
	clock := func(ms int) time.Time { return time.UnixMilli(int64(1_000_000 + ms)) }
	for _, step := range []struct {
		receiver   *waitRing
		since, now int // ms
		want       bool
		what       string
	}{
		{r, 0, 999, true, "in the first second"},
		{r, 0, 1000, false, "for more than a second"},
		{r, 1000, 1000, false, "in the penalty"},
		{r, 2000, 2999, false, "until the penalty of two seconds ends"},
		{r, 3000, 3000, true, "after two seconds"},
		{r, 3000, 4000, false, "a second time, for more than a second"},
		{r, 7900, 7900, false, "in the second penalty, which is longer than the first"},
		{other, 5000, 5000, true, "where another receiver has a penalty"},
	} {
		if got := p.ShouldWait(step.receiver, clock(step.since), clock(step.now)); got != step.want {
			t.Errorf("%s: waited for: %v", step.what, got)
		}
	}
	r.locked(r.WakeAll)
	if !p.ShouldWait(r, clock(7000), clock(7000)) {
		t.Error("a penalty for one that got buffers")
	}
	var rs []*waitRing
	for range 6 {
		rs = append(rs, newWaitRing())
		p.ShouldWait(rs[len(rs)-1], clock(0), clock(10_000))
	}
	n := 0
	for _, r := range rs {
		if r.Waiting() {
			n++
		}
	}
	if n != 4 {
		t.Errorf("%d penalties are kept", n)
	}
	p.Reset()
	for _, r := range append(rs, r, other) {
		if r.Waiting() {
			t.Error("armed still")
		}
	}
}

// While frames are held, at most two Steps count of the time between two looks at the clock.
func TestPatienceIsOfTimeThatASenderHad(t *testing.T) {
	p := nic.Patience{Limit: time.Second}
	start := time.UnixMilli(1_000_000)
	clock := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	if now := p.Pass(clock(0), false); !now.Equal(clock(0)) {
		t.Fatalf("begins at %v", now)
	}
	if now := p.Pass(clock(5000), false); !now.Equal(clock(5000)) {
		t.Errorf("without frames: %v, want 5 s later", now)
	}
	since, r := clock(5000), newWaitRing()
	if now := p.Pass(clock(9000), true); !now.Equal(since.Add(2*p.Step())) || !p.ShouldWait(r, since, now) {
		t.Errorf("after 4 s without a look: %v, want two steps of %v later, and to wait on", now, p.Step())
	}
	real, looks := clock(9000), 0
	for now := since; p.ShouldWait(r, since, now); looks++ {
		if looks > 100 {
			t.Fatal("waits for ever, with a look each step")
		}
		real = real.Add(p.Step())
		now = p.Pass(real, true)
	}
	if want := int(p.Limit/p.Step()) - 2; looks != want {
		t.Errorf("%d looks until patience ended, want %d", looks, want)
	}
}
