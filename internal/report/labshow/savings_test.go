package labshow

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/lab/pcie/host"
	"vnic.dev/vnic/internal/testkit"
)

// machine returns a machine with a NIC, a GPU and a GPU behind a redirecting port below a gen3x16 switch, and a GPU at
// another socket.
func machine(t *testing.T, nic pcie.Link) *host.Machine {
	fast := pcie.Link{Gen: 5, Width: 16}
	tree, err := pcie.New([]pcie.Node{{Name: "pci0000:00", Kind: pcie.Socket},
		{Name: "pci0000:80", Kind: pcie.Socket, NUMA: 1},
		{Name: "switch", Kind: pcie.Switch, Below: "pci0000:00", Link: pcie.Link{Gen: 3, Width: 16}},
		{Name: "nic", Kind: pcie.Endpoint, Below: "switch", Link: nic},
		{Name: "near", Kind: pcie.Endpoint, Below: "switch", Link: fast},
		{Name: "apart", Kind: pcie.Endpoint, Below: "switch", Link: fast, Redirect: true},
		{Name: "far", Kind: pcie.Endpoint, Below: "pci0000:80", Link: fast}})
	testkit.OK(t, err)
	m := &host.Machine{Tree: tree, ACSKnown: true, NICs: []host.Device{{Name: "nic"}}}
	for _, g := range []string{"near", "apart", "far"} {
		m.GPUs = append(m.GPUs, host.Device{Name: g})
	}
	return m
}

// By the model a NIC's link carries 1 + 24/256 bytes up for each payload byte that the NIC writes, and 1 + 20/256 down
// for each that it reads. With copies each byte crosses the switch's link of 15.75 GB/s in both directions, and
// requests of 24/512 also go up.
func TestWhatDevmemSavesOnAHost(t *testing.T) {
	for link, want := range map[pcie.Link]string{
		{Gen: 3, Width: 8}: "received: at most 7.2 GB/s (the NIC's link), with copies 7.2 GB/s (the NIC's link)\n" +
			"    sent: at most 7.3 GB/s (the NIC's link), with copies 7.3 GB/s (the NIC's link)",
		{Gen: 4, Width: 16}: "received: at most 28.8 GB/s (the NIC's link), with copies 13.8 GB/s (a switch's link)\n" +
			"    sent: at most 29.2 GB/s (the NIC's link), with copies 13.8 GB/s (a switch's link)",
		{Gen: 6, Width: 16}: "received: at most 57.6 GB/s (the GPU's link), with copies 13.8 GB/s (a switch's link)\n" +
			"    sent: at most 58.4 GB/s (the GPU's link), with copies 13.8 GB/s (a switch's link)",
		{}: "not all links say how fast they are",
	} {
		var b strings.Builder
		testkit.OK(t, Host(&b, machine(t, link)))
		_, text, found := strings.Cut(b.String(), "\nWhat devmem would save (model, not measured: ")
		if !found || !strings.Contains(text, "\n2 bytes in host memory for each of payload\n    "+want+"\n    nic-near\n"+
			"nothing: payload would be bounced, and be in host memory as with copies\n    nic-apart nic-far\n") {
			t.Errorf("%v: %s", link, &b)
		}
	}
	var b strings.Builder
	m := machine(t, pcie.Link{})
	m.GPUs, m.ACSKnown, m.Hypervisor = nil, false, "KVM"
	testkit.OK(t, Host(&b, m))
	_, end, _ := strings.Cut(b.String(), "\nno pair of a NIC and a GPU\n")
	testkit.Equal(t, "the end", end, "\nThis is a virtual machine: the tree is what KVM shows, not what is plugged in.\n"+
		"What is direct below a switch is so unless ACS redirects, which root may read: run this as root to know.\n")
}
