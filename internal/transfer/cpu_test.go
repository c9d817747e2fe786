package transfer

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestParseStat(t *testing.T) {
	c, err := parseStat([]byte("cpu  100 20 30 4000 5 6 7 8 9 10\ncpu0 1 2 3\n"))
	if want := (CPU{User: 1.2, System: 0.3, IRQ: 0.13}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
	for _, s := range []string{"", "cpu", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 x", "cpu 1 2 3 4 5 6 -7"} {
		if _, err := parseStat([]byte(s)); err == nil {
			t.Errorf("%q is no error", s)
		}
	}
	if c, err := ProcStat(); err != nil || c.User < 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestWorkIsTimeWithoutSpin(t *testing.T) {
	a := CPU{User: 2, System: 1, IRQ: 0.5, Spin: 1.5}
	testkit.Equal(t, "work", a.Add(a).minus(a).Work(), 2)
	testkit.Equal(t, "work of polling", (CPU{Spin: 1}).Work(), 0)
}
