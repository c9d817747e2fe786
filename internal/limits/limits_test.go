package limits

import (
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: limits: On a machine that is N times slower, up to Max, everything that is waited for
// may take N times longer, except for limits that a user sets to another value than the default.
func TestLimitsFollowTheMachine(t *testing.T) {
	t.Cleanup(func() { slow.Store(0) })
	l := Limit(10 * time.Second)
	testkit.Equal(t, "at first", l.Here(), 10*time.Second)
	testkit.Equal(t, "doublings at first", Doublings(), 0)
	testkit.Equal(t, "environment", strings.Join(Environ(), " "), "")
	Booted(knownBoot / 2)
	testkit.Equal(t, "a fast boot", l.Here(), 10*time.Second)
	Booted(knownBoot * 3)
	testkit.Equal(t, "a slow boot", l.Here(), 30*time.Second)
	Stretch(2)
	testkit.Equal(t, "a faster guest", l.Here(), 30*time.Second)
	testkit.Equal(t, "the default", l.Unless(10*time.Second), 30*time.Second)
	testkit.Equal(t, "a user's", l.Unless(11*time.Second), 11*time.Second)
	testkit.Equal(t, "environment", strings.Join(Environ(), " "), "VNIC_SLOW=3")
	testkit.Equal(t, "doublings", Doublings(), 2)
	Stretch(math.Inf(1))
	testkit.Equal(t, "at most", Slow(), Max)
	testkit.Equal(t, "as long as there is", Limit(math.MaxInt64/2).Here(), math.MaxInt64)
	testkit.Equal(t, "a QEMU that starts in no time", Started(0), 1)
	testkit.Equal(t, "one that starts slowly", Started(2*knownStart), 2)
}

// At the first use of a limit, once a process, the environment tells how slow the machine is.
func TestFirstUseReadsTheEnvironment(t *testing.T) {
	t.Cleanup(func() { slow.Store(0) })
	t.Setenv(Env, "4")
	fromEnv = sync.OnceFunc(readEnv)
	testkit.Equal(t, "first", Slow(), 4.0)
	t.Setenv(Env, "5")
	testkit.Equal(t, "later", Slow(), 4.0)
}

func TestSlowIsRead(t *testing.T) {
	for s, want := range map[string]float64{"1": 1, "2.5": 2.5, "1000": 1000, "0": 0, "0.9": 0, "1001": 0, "NaN": 0,
		"": 0, "x": 0, "-3": 0} {
		n, err := Parse(s)
		if n != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v", s, n, err)
		}
		t.Setenv(Env, s)
		if err := Check(); (err == nil) != (want > 0 || s == "") {
			t.Errorf("$%s=%s: %v", Env, s, err)
		}
	}
}
