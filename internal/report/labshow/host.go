package labshow

import (
	"fmt"
	"io"
	"strings"

	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/lab/pcie/host"
)

// Host prints a machine's PCIe tree, reduced to network devices, GPUs and other accelerators, NVMe drives, and the
// bridges above them. If m has a NIC and a GPU, Host also prints how each NIC reaches each GPU's memory, and what
// devmem would save.
func Host(w io.Writer, m *host.Machine) error {
	v := &view{tree: m.Tree, about: make(map[string]string)}
	for _, n := range m.Tree.Nodes() {
		if n.Kind == pcie.Socket {
			v.about[n.Name] = fmt.Sprintf("NUMA node %d, forwards: %s", n.NUMA, n.Routing)
		}
	}
	for _, n := range m.NICs {
		v.nics = append(v.nics, n.Name)
		v.about[n.Name] = strings.TrimSpace(fmt.Sprintf("network, %04x:%04x %s", n.Vendor, n.Device, n.Interface))
	}
	for _, g := range m.GPUs {
		v.gpus = append(v.gpus, g.Name)
		v.about[g.Name] = fmt.Sprintf("GPU or accelerator, %04x:%04x", g.Vendor, g.Device)
	}
	var b strings.Builder
	b.WriteString("this machine\n\n")
	if err := v.print(&b); err != nil {
		return err
	}
	if b.WriteByte('\n'); v.pairs() {
		v.savings(&b)
		b.WriteString(legend)
	}
	if m.Hypervisor != "" {
		fmt.Fprintf(&b, "This is a virtual machine: the tree is what %s shows, not what is plugged in.\n", m.Hypervisor)
	}
	if !m.ACSKnown {
		b.WriteString("What is direct below a switch is so unless ACS redirects, which root may read: " +
			"run this as root to know.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
