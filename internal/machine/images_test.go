package machine

import (
	"errors"
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

func TestGuestsOfADriverNeedItsModule(t *testing.T) {
	driven := lab.Guest{Driver: lab.DriverVNICGPU}
	testkit.Equal(t, "modules", fmt.Sprint(DriverModules([]lab.Guest{{}, driven})), "[vnicgpu]")
	testkit.Equal(t, "modules", len(DriverModules([]lab.Guest{{}, {Driver: lab.DriverNode}})), 0)
	im := &Images{Resolved: &assets.Resolved{Kernel: assets.Kernel{Modules: t.TempDir()}}}
	for model, want := range map[string]string{lab.GVE: "[gve]", lab.Virtio: "[virtio_net]"} {
		testkit.Equal(t, model, fmt.Sprint(im.Drivers(model)), want)
	}
}

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
