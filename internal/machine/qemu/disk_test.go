package qemu

import (
	"testing"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: qemu: A file that is a writable disk of one guest cannot be a disk of another.
func TestGuestHasADiskThatNoOtherHas(t *testing.T) {
	c := guest(t)
	c.Disks = []Disk{{File: sized(t, 1<<20), Serial: "x"}, {File: sized(t, 1<<20), ReadOnly: true}}
	m := boot(t, c)
	h := testkit.Must(agent.SayHello.Call(t.Context(), m.Agent(), agent.None{}))(t)
	if got := h.Find(0x1af4, 0x1042); len(got) != 2 {
		t.Errorf("disks: %+v", h.PCI)
	}
	other := guest(t)
	other.Disks = c.Disks[:1]
	second, err := Start(t.Context(), other)
	testkit.ErrorSays(t, err, `lock`)
	if second != nil {
		testkit.OK(t, second.Close())
	}
	testkit.OK(t, m.PowerOff(t.Context()))
}
