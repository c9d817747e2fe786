package serve

import (
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// A --poll or a --hot that cannot work is refused.
func TestPollIsChecked(t *testing.T) {
	for _, c := range []struct {
		o          Options
		processors int
		says       string
	}{
		{Options{Poll: -1}, 4, "--poll -1: a number of threads"},
		{Options{Hot: true}, 4, "--hot: only threads of --poll"},
		{Options{Poll: 1, NIC: lab.NIC{Model: lab.GVE}}, 4, "by a doorbell"},
		{Options{Poll: 5}, 4, "this process may use 4"},
		{Options{Poll: 4, Hot: true}, 4, ""},
		{Options{}, 1, ""},
	} {
		if err := c.o.checkPoll(c.processors); c.says == "" {
			testkit.OK(t, err)
		} else {
			testkit.ErrorSays(t, err, c.says)
		}
	}
}
