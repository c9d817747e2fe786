// Package gpulab tests vnicgpu.ko (guest-images/vnicgpu), the driver of guests' GPUs, in QEMU.
package gpulab

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/test/internal/guestops"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	program   = "vnic.dev/vnic/internal/gpudriver/gpudriver-test"
	gpuMemory = 64 << 20
	page      = 4096
)

// guest is a guest with a gVNIC and a GPU that has the driver.
type guest struct {
	*machine.Guest
	gpu *lab.GPUMemory
}

func boot(t *testing.T) *guest {
	t.Helper()
	im := images(t)
	l := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{{Driver: lab.DriverVNICGPU,
		NICs: []lab.NIC{{Model: lab.GVE}}, GPUs: []lab.GPU{{Memory: gpuMemory}}}}}, nil)
	m := machinetest.Boot(t, im, l.Machine(0), machine.Config{Config: qemu.Config{RAMSize: 384 << 20,
		TimeLimit: 30 * time.Minute}})
	up(t, m, l.Port(0))
	return &guest{m, l.Port(0).GPU()}
}

func (g *guest) run(t *testing.T, args ...string) string {
	t.Helper()
	r := call(t, g.Guest, args...)
	if r.Status != 0 {
		t.Fatalf("gpudriver-test %s: status %d\n%s%s", args, r.Status, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// quiet checks that the kernel's log has no complaint, and has vnicgpu's line about the memory.
func (g *guest) quiet(t *testing.T) {
	t.Helper()
	log := g.run(t, "log")
	for line := range strings.Lines(log) {
		if guestops.Splat.MatchString(line) {
			t.Errorf("the kernel says: %s", line)
		}
	}
	if !strings.Contains(log, "vnicgpu0: 64 MiB") {
		t.Errorf("the log: %s", log)
	}
}

// Invariant: vnicgpu: bad calls are refused, memory is a file's own, and removal waits for devices and for nobody else.
func TestDriverInAGuest(t *testing.T) {
	g := boot(t)
	t.Log(g.run(t))
	g.quiet(t)
}

// Invariant: vnicgpu: a program's pages move to the GPU's memory and back, and none of its bytes is lost: by touch, by
// request, with fork, exit, SIGKILL, compaction, memory pressure and removal.
func TestPrivatePages(t *testing.T) {
	g := boot(t)
	t.Log(g.run(t, "private-long"))

	// Before "leave", the GPU's memory gets bytes other than the expected ones.
	const size = 1 << 20
	poison := bytes.Repeat([]byte{0x5a}, gpuMemory)
	testkit.Must(g.gpu.File.WriteAt(poison, 0))(t)
	places := strings.Fields(g.run(t, "leave", strconv.Itoa(size)))
	testkit.Equal(t, "pages", len(places), size/page)
	b := make([]byte, page)
	for i, text := range places {
		off := testkit.Must(strconv.ParseUint(text, 10, 64))(t)
		testkit.Must(g.gpu.File.ReadAt(b, int64(off)))(t)
		for j := 0; j < page; j += 8 {
			off := uint64(i*page + j)
			if got, want := binary.NativeEndian.Uint64(b[j:]), (off+12)*0x9e3779b97f4a7c15; got != want {
				t.Fatalf("page %d, at %#x of the GPU: %#x, and not %#x", i, off+uint64(j), got, want)
			}
		}
	}
	g.quiet(t)
}
