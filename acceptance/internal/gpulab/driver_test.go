// Package gpulab judges the driver of guests' GPUs in QEMU: vnicgpu.ko (guest-images/vnicgpu).
package gpulab

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/acceptance/internal/guestops"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/guestnet"
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
	modules := append(slices.Clone(machines.SoftwareFor(lab.GVE).Modules), guestimages.GPUModule)
	im := machinetest.Images(t, []string{lab.GVE}, guestimages.Options{Modules: modules,
		Files: map[string]string{"bin/gpudriver-test": machinetest.Program(t, program)}})
	l := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{{Driver: lab.DriverVNICGPU,
		NICs: []lab.NIC{{Model: lab.GVE}}, GPUs: []lab.GPU{{Memory: 64 << 20}}}}}, nil)
	m := machinetest.Boot(t, im, l.Machine(0), machines.Config{RAMSize: 384 << 20, TimeLimit: 5 * time.Minute})
	p := l.Port(0)
	n := testkit.Must(guestnet.Apply(t.Context(), m.Agent(), guestnet.Config{Interfaces: []guestnet.Interface{{
		MAC: net.HardwareAddr(p.MAC[:]).String(), MTU: p.MTU, Addrs: []netip.Prefix{p.Addr4}}}}))(t)
	testkit.Equal(t, "what is not ready", n.NotReady, "")
	var r agent.ExecResult
	testkit.OK(t, m.Agent().Call(t.Context(), "exec", agent.Exec{Args: []string{"/bin/gpudriver-test"}}, &r))
	t.Logf("%s%s", r.Stdout, r.Stderr)
	testkit.Equal(t, "status", r.Status, 0)
	testkit.OK(t, m.Agent().Call(t.Context(), "exec", agent.Exec{Args: []string{"/bin/gpudriver-test", "log"}}, &r))
	for line := range strings.Lines(r.Stdout) {
		if guestops.Splat.MatchString(line) {
			t.Errorf("the kernel says: %s", line)
		}
	}
	if !strings.Contains(r.Stdout, "vnicgpu0: 64 MiB") {
		t.Errorf("the log: %s", r.Stdout)
	}
}
