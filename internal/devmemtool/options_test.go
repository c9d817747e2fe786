package devmemtool

import (
	"io"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Flags take precedence over the guest's environment.
func TestGuestSaysWhoWeAre(t *testing.T) {
	t.Setenv("VNIC_DEVICE", "eth7")
	t.Setenv("VNIC_ADDR", "10.0.0.101/16")
	t.Setenv("VNIC_ADDR6", "fd00::101/64")
	for args, want := range map[string]string{
		"recv -p 1":                             "eth7 10.0.0.101/16",
		"recv -p 1 -s 10.0.0.9 -f virtio":       "virtio 10.0.0.9/24",
		"send -p 1 -s 10.0.0.9":                 "eth7 10.0.0.101/16",
		"send -p 1 -s fd00::9":                  "eth7 fd00::101/64",
		"send -p 1 -s 10.0.0.9 -c 10.0.0.8":     "eth7 10.0.0.8/24",
		"send -p 1 -s fd00::9 -c fd00::8 -f e0": "e0 fd00::8/64",
	} {
		o, err := parse(strings.Fields(args), io.Discard)
		if err != nil || o.iface+" "+o.ours().String() != want {
			t.Errorf("%s: %+v, %v", args, o, err)
		}
	}
	testkit.ErrorSays(t, testkit.Err(parse(strings.Fields("send -p 1"), io.Discard)), "missing -s")
	t.Setenv("VNIC_ADDR", "nonsense")
	testkit.ErrorSays(t, testkit.Err(parse(strings.Fields("recv -p 1"), io.Discard)), "VNIC_ADDR: ")
}
