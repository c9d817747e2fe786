package gpulab

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
)

// Invariant: vnicgpu: a NIC has pages of programs on demand, and lets go of them before Linux has them moved, unmapped
// or freed: none of its writes is lost, and one that acknowledges before it has is seen. A NIC that does not answer
// holds an exit or a removal up once, for a bounded time.
func TestPaging(t *testing.T) {
	im := images(t)
	l := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{{Driver: lab.DriverVNICGPU,
		NICs: []lab.NIC{{Model: lab.GVE}}, GPUs: []lab.GPU{{Memory: gpuMemory}}}}}, nil)
	// With two CPUs, one can move a page while the other handles the NIC's request.
	m := machinetest.Boot(t, im, l.Machine(0), machine.Config{Config: qemu.Config{CPUs: 2, RAMSize: 384 << 20,
		TimeLimit: 30 * time.Minute}})
	g := &guest{m, l.Port(0).GPU()}
	serve(t, g)
	t.Log(g.run(t, "paging"))
	g.quiet(t)
}
