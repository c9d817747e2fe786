package boot

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/testkit"
)

func TestGoldenEnvironment(t *testing.T) {
	t.Setenv("TERM", "vt100")
	t.Setenv("COLORTERM", "truecolor")
	t.Setenv("LD_LIBRARY_PATH", "/lib/of/mine")
	t.Setenv("FROM_HERE", "value")
	var b strings.Builder
	for _, c := range []struct {
		name   string
		change func(*Options)
	}{
		{"virtio", func(*Options) {}},
		{"virtio, 2 guests", func(o *Options) { o.Guests = 2 }},
		{"virtio, no GPUs, no gateway", func(o *Options) { o.GPUMemory, o.NoGateway = 0, true }},
		{"gve", func(o *Options) { o.NIC = lab.GVE }},
		{"gve, 2 guests", func(o *Options) { o.NIC, o.Guests = lab.GVE, 2 }},
		{"gve, no GPUs, --env", func(o *Options) {
			o.NIC, o.GPUMemory, o.Env, o.MTU = lab.GVE, 0, []string{"A=b=c", "FROM_HERE", "NOT_HERE"}, 9000
		}},
		{"virtio, lab a3-high", func(o *Options) { testkit.OK(t, o.Take(testkit.Must(labfile.Load("a3-high", nil))(t))) }},
		{"gve, lab", func(o *Options) { testkit.OK(t, o.Take(testkit.Must(labfile.Load("testdata/gve.yaml", nil))(t))) }},
		{"lab of both models", func(o *Options) {
			testkit.OK(t, o.Take(testkit.Must(labfile.Load("testdata/rails-mixed.yaml", nil))(t)))
		}},
	} {
		o := good()
		c.change(&o)
		w := testkit.Must(lab.Open(o.describe(), lab.Options{}))(t)
		for _, p := range o.places(w) {
			n := o.network(p)
			var found []guestnet.Found
			for i := range n.Interfaces {
				found = append(found, guestnet.Found{Name: fmt.Sprint("eth", i), PCI: fmt.Sprintf("0000:00:%02x.0", 3+i)})
			}
			g := &guest{runner: &runner{opt: &o, program: &program{}}, place: p, network: guestnet.Result{Interfaces: found}}
			conf := testkit.Must(json.MarshalIndent(n, "", "  "))(t)
			// The variable of limits.Slow depends on the machine and on other tests.
			env := slices.DeleteFunc(g.env(), func(v string) bool { return strings.HasPrefix(v, limits.Env+"=") })
			fmt.Fprintf(&b, "== %s: %s\n%s\n%s\n\n", c.name, p.name, strings.Join(env, "\n"), conf)
		}
		testkit.OK(t, w.Close())
	}
	golden.Check(t, "testdata/golden", map[string]string{"environment": b.String()})
}
