package servelab

import (
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Invariant: nic: A transfer between guests' GPUs goes on over stops and conts of their QEMUs.
//
// Invariant: nic/virtio: The kernel's virtio_net works as a legacy driver, with both lengths of its header.
func TestServeStrangersQEMU(t *testing.T) {
	testkit.Boots(t)
	for _, c := range []struct {
		name string
		set  func(*bench)
	}{
		{"virtio", func(*bench) {}},
		{"gve", func(b *bench) { b.nic = lab.GVE }},
		{"QEMU listens", func(b *bench) { b.client = true }},
		{"stock", func(b *bench) { b.stock = true }},
		{"legacy", func(b *bench) { b.stock, b.legacy = true, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			try(t, c.set)
		})
	}
}
