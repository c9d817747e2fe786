package gpulab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

func images(t *testing.T) *machine.Images {
	t.Helper()
	modules := append(slices.Clone(machine.SoftwareFor(lab.GVE).Modules), guestimages.GPUModule)
	return machinetest.Images(t, []string{lab.GVE}, guestimages.Options{Modules: modules,
		Files: map[string]string{"bin/gpudriver-test": machinetest.Program(t, program)}})
}

func up(t *testing.T, m *machine.Guest, p *lab.Port) {
	t.Helper()
	n := testkit.Must(guestnet.Apply(t.Context(), m.Agent(), guestnet.Config{Interfaces: []guestnet.Interface{{
		MAC: net.HardwareAddr(p.MAC[:]).String(), MTU: p.MTU, Addrs: []netip.Prefix{p.Addr4}}}}))(t)
	testkit.Equal(t, "what is not ready", n.NotReady, "")
}

func call(t *testing.T, m *machine.Guest, args ...string) agent.ExecResult {
	t.Helper()
	x := agent.Exec{Args: append([]string{"/bin/gpudriver-test"}, args...)}
	return testkit.Must(agent.Run.Call(t.Context(), m.Agent(), x))(t)
}

// kernelCase is a guest whose kernel is asked to bind GPU memory.
type kernelCase struct {
	name    string
	routing pcie.Routing
	below   string // above NIC and GPU: the switch x or the socket s
	iommu   string // words of the kernel's command line; "": no IOMMU
	domain  string // text that the kernel's log must have about the IOMMU; "": none
	log     string // text that the kernel's log must have about the refusal; "": the kernel must bind
}

func judge(t *testing.T, list ...kernelCase) {
	t.Helper()
	im := images(t)
	var d lab.Description
	for i, c := range list {
		slot := lab.Slot{Below: c.below}
		g := lab.Guest{Name: fmt.Sprint("g", i), Driver: lab.DriverVNICGPU,
			Sockets: []lab.Socket{{Name: "s", Routing: c.routing}},
			NICs:    []lab.NIC{{Model: lab.GVE, Slot: slot}}, GPUs: []lab.GPU{{Memory: 16 << 20, Slot: slot}}}
		if c.below == "x" {
			g.Switches = []lab.Switch{{Name: "x", Slot: lab.Slot{Below: "s"}}}
		}
		d.Guests = append(d.Guests, g)
	}
	l := machinetest.Lab(t, d, nil)
	var guests []machinetest.Guest
	for i, c := range list {
		conf := machine.Config{Config: qemu.Config{Name: c.name, RAMSize: 384 << 20, TimeLimit: 5 * time.Minute}}
		if c.iommu != "" {
			conf.Args, conf.Append = []string{"-device", "intel-iommu,caching-mode=on"}, c.iommu
		}
		guests = append(guests, machinetest.Guest{Machine: l.Machine(i), Config: conf})
	}
	for i, m := range machinetest.BootAll(t, im, guests...) {
		c := list[i]
		up(t, m, l.Port(i))
		r, log := call(t, m, "bind"), call(t, m, "log").Stdout
		if !strings.Contains(log, c.domain) {
			t.Errorf("%s: no %q in the kernel's log:\n%s", c.name, c.domain, log)
		}
		if c.log == "" {
			if r.Status != 0 || r.Stdout != "bound\n" {
				t.Errorf("%s: %+v", c.name, r)
			}
			continue
		}
		if r.Status != 1 || !strings.Contains(r.Stderr, "operation not supported") ||
			!strings.Contains(r.Stderr, "the NIC cannot reach it from where it is in the PCIe tree") {
			t.Errorf("%s: %+v", c.name, r)
		}
		if !strings.Contains(log, c.log) {
			t.Errorf("%s: no %q in the kernel's log:\n%s", c.name, c.log, log)
		}
	}
}

// Invariant: vnicgpu: Where an IOMMU would translate what the NIC sends below a switch, binding is refused at once, and
// the log says what helps; where it does not translate, memory is bound.
func TestTranslatingIOMMU(t *testing.T) {
	testkit.Boots(t)
	judge(t,
		kernelCase{name: "it translates", below: "x", iommu: "intel_iommu=on iommu.strict=1",
			domain: "Default domain type: Translated", log: "iommu=pt, or no switch"},
		kernelCase{name: "it does not", below: "x", iommu: "intel_iommu=on iommu=pt",
			domain: "Default domain type: Passthrough"})
}

// Invariant: vnicgpu: Across root ports Linux decides by the CPU: it binds where the lab's host bridges forward, and
// refuses where they do not.
func TestLinuxDecides(t *testing.T) {
	testkit.Boots(t)
	judge(t,
		kernelCase{name: "p2p none", below: "s", routing: pcie.NoRouting, log: "cannot be used for peer-to-peer DMA"},
		kernelCase{name: "p2p any", below: "s", routing: pcie.AnyBridge})
}
