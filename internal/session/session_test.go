package session

import (
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func TestFlowsOfASession(t *testing.T) {
	none, some := 0, 4
	for name, c := range map[string]struct {
		flows *int
		kept  bool
	}{"not named": {nil, true}, "none": {&none, false}, "some": {&some, true}} {
		t.Run(name, func(t *testing.T) {
			o := Common{InProc: true}
			d := lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0)
			s := testkit.Must(Open(t.Context(), &o, World{Lab: d, Flows: c.flows}))(t)
			for _, p := range s.Lab.Ports() {
				testkit.Equal(t, "an account is kept", p.NIC().CountsFlows(), c.kept)
			}
			testkit.OK(t, s.Close())
		})
	}
}
