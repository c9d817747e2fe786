package kerneltest

import (
	"encoding/json"
	"log/slog"
	"os"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/machines"
	"vnic.dev/vnic/lab/machines/machinetest"
	"vnic.dev/vnic/qemu"
)

// Environment of a run by hand: which cases, and more arguments of the program.
const envCases = "VNIC_CASES"

// The suite over the unmodified kernel: its gve driver, on a gVNIC of ours, between two of them in
// one guest.
//
// Invariant: devmem/kernel: Linux's own sockets pass the same suite, over IPv4, IPv6 and loopback.
func TestConformanceOfTheKernel(t *testing.T) {
	suite := machinetest.Program(t, "vnic.dev/vnic/devmem/kernel/kerneltest/devmem-conformance")
	im := machinetest.Images(t, []string{lab.GVE}, guestimages.Options{
		Files:   map[string]string{"bin/devmem-conformance": suite},
		Program: machinetest.Program(t, guestimages.ProgramPackage)})
	l := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{{NICs: []lab.NIC{{Model: lab.GVE}, {Model: lab.GVE}},
		GPUs: []lab.GPU{{Memory: 64 << 20}}}}}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	m := machinetest.Boot(t, im, l.Machine(0), machines.Config{Agent: agent.Config{Hostname: "a"}, RAMSize: 512 << 20,
		Accel: qemu.AccelTCG, TimeLimit: 8 * time.Minute, Console: t.Output()})
	args := []string{"/bin/devmem-conformance", "-i", "eth0", "-peer", "eth1", "-node", "1"}
	if s := os.Getenv(envCases); s != "" {
		args = append(args, "-run", s)
	}
	var out agent.ExecResult
	testkit.OK(t, m.Agent().Call(t.Context(), "exec", agent.Exec{Args: args}, &out))
	t.Logf("status %d\n%s", out.Status, out.Stderr)
	var res Result
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
	for _, p := range l.Ports() {
		t.Logf("%s: %+v, %d failures", p.Name, p.NIC().Link().Counters(),
			p.Device().(interface{ Failures() uint64 }).Failures())
	}
	testkit.NoError(t, m.PowerOff(t.Context()))
}
