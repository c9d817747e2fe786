// Package gpulab judges the driver of guests' GPUs in QEMU: vnicgpu.ko (guest-images/vnicgpu).
package gpulab

import (
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/acceptance/internal/guestops"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/machines"
	"vnic.dev/vnic/lab/machines/machinetest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const program = "vnic.dev/vnic/guest-images/gpudriver/gpudriver-test"

// Invariant: vnicgpu: bad calls are refused, memory is a file's own, and removal waits for devices and for nobody else.
func TestDriverInAGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots QEMU")
	}
	im := images(t)
	l := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{{Driver: lab.DriverVNICGPU,
		NICs: []lab.NIC{{Model: lab.GVE}}, GPUs: []lab.GPU{{Memory: 64 << 20}}}}}, nil)
	m := machinetest.Boot(t, im, l.Machine(0), machines.Config{RAMSize: 384 << 20, TimeLimit: 5 * time.Minute})
	up(t, m, l.Port(0))
	r := call(t, m)
	t.Logf("%s%s", r.Stdout, r.Stderr)
	testkit.Equal(t, "status", r.Status, 0)
	r = call(t, m, "log")
	for line := range strings.Lines(r.Stdout) {
		if guestops.Splat.MatchString(line) {
			t.Errorf("the kernel says: %s", line)
		}
	}
	if !strings.Contains(r.Stdout, "vnicgpu0: 64 MiB") {
		t.Errorf("the log: %s", r.Stdout)
	}
}
