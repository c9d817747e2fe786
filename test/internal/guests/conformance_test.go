package guests

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/kerneltest"
	"vnic.dev/vnic/internal/testkit"
)

// envCases is the environment variable that selects cases of the conformance suite; empty: all.
const envCases = "VNIC_CASES"

// conformance runs the suite over the unmodified kernel with its gve driver.
func (w *guestLab) conformance(ctx context.Context, t *testing.T) {
	args := []string{"/bin/devmem-conformance", "-i", "eth0", "-peer", "eth1", "-node", "1"}
	if s := os.Getenv(envCases); s != "" {
		args = append(args, "-run", s)
	}
	out := testkit.Must(agent.Run.Call(ctx, w.gve.Agent(), agent.Exec{Args: args}))(t)
	t.Logf("status %d\n%s", out.Status, out.Stderr)
	var res kerneltest.Result
	if err := json.Unmarshal([]byte(out.Stdout), &res); err != nil {
		t.Fatalf("%v: %q", err, out.Stdout)
	}
	t.Logf("%d passed, %d skipped, %d failed", res.Passed, res.Skipped, res.Failed)
	for _, c := range res.Cases {
		if c.Failed {
			t.Errorf("%s: %q", c.Name, c.Log)
		}
	}
	if out.Status != 0 || res.Passed == 0 {
		t.Errorf("status %d, %d passed", out.Status, res.Passed)
	}
	for _, i := range []int{gvePort, gveSecond} {
		p := w.ports[i]
		t.Logf("%s: %+v, %d failures", p.Name, p.NIC().Link().Counters(),
			p.Device().(interface{ Failures() uint64 }).Failures())
	}
}
