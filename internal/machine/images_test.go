package machine

import (
	"errors"
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
)

func TestUsersKernelIsBlamedForItsDriver(t *testing.T) {
	refused := fmt.Errorf("set up its NIC: guest A: %w", &agent.RemoteError{Op: "transfer.setup",
		Text: "no network interface of driver gve"})
	for _, c := range []struct {
		source string
		err    error
		blamed bool
	}{
		{assets.SourceGiven, refused, true},
		{assets.SourceCache, refused, false},
		{assets.SourceGiven, errors.New("guest A: agent ended"), false},
	} {
		im := &Images{Resolved: &assets.Resolved{Kernel: assets.Kernel{Version: "6.1.0", Source: c.source}}}
		err := im.BlameKernel(c.err, qemu.NewerKernel)
		missing := (*assets.Missing)(nil)
		if errors.As(err, &missing) != c.blamed || !errors.Is(err, c.err) || c.blamed && missing.What != "kernel 6.1.0" {
			t.Errorf("%s kernel, %v: got %v", c.source, c.err, err)
		}
	}
}
