package kernelnic

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Args[0] == GuardName {
		os.Exit(Guard(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

func TestGuardKnowsWhatIsLeft(t *testing.T) {
	for in, want := range map[string][]uint32{
		"":                     nil,
		"+1\n-1\n":             nil,
		"+1\n+2\n+3\n-2\n":     {1, 3},
		"+1\n-1\n+1\n":         {1},
		"+4294967295\n-7\nx\n": {4294967295},
		"\n+\n-\n+99999999999": nil,
		"+5\n+6":               {5, 6}, // the process was killed within its last line
	} {
		if got := slices.Sorted(maps.Keys(registered(strings.NewReader(in)))); !slices.Equal(got, want) {
			t.Errorf("%q: %v, not %v", in, got, want)
		}
	}
}

func TestGuardEnds(t *testing.T) {
	g, err := startGuard("no-such-interface")
	testkit.OK(t, err)
	for _, s := range []byte("+-") {
		testkit.OK(t, g.note(s, 7))
	}
	testkit.OK(t, g.close())
	g = testkit.Must(startGuard("no-such-interface"))(t)
	testkit.OK(t, g.note('+', 7))
	testkit.ErrorSays(t, g.close(), "exit status 1")
	var none *guard
	if err := none.note('+', 1); err != nil || none.close() != nil {
		t.Error(err)
	}
}
