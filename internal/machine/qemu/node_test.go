package qemu

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: guest-images: Only a guest's window, and perhaps pages of /init, lie in the memory of
// the GPU's node.
func TestGPUOnANodeIsTheGuestsToTake(t *testing.T) {
	const gpuSize, window, ramSize = 128 << 20, 104 << 20, 256 << 20 // the kernel reserves a part of a node
	c := guest(t)
	gpu := sized(t, gpuSize)
	c.Initrd = initrd(t, agent.Config{Node0: true, HugePages: 4})
	c.RAMSize, c.Append = ramSize, kernelnic.KernelArgs
	c.GPUs = []GPU{{File: gpu, Size: gpuSize, Node: true}}
	m := boot(t, c)
	n := struct {
		Base, GPU, Window uint64
		Extents           []kernelnic.Extent
		Policies          map[string]int
		Node1             []string
		Free              string
	}{Base: ramSize, GPU: gpuSize, Window: window}
	start := time.Now()
	testkit.OK(t, m.Agent().Call(t.Context(), "node", n, &n))
	t.Logf("%v, extents %+v, policies %v\n%s", time.Since(start), n.Extents, n.Policies, n.Free)
	if len(n.Node1) != 0 {
		t.Errorf("memory of the node besides the window: %q", n.Node1)
	}
	for p := range n.Policies {
		if p != "bind:0" && p != "window bind:1" {
			t.Errorf("a policy %s", p)
		}
	}
	var size uint64
	for _, e := range n.Extents {
		b := make([]byte, e.Size)
		if _, err := gpu.ReadAt(b, int64(e.GPUOff)); err != nil {
			t.Fatal(err)
		}
		for i := uint64(0); i < e.Size; i += 4096 {
			if want := fmt.Appendf(nil, "page %10d", (e.Off+i)/4096); !bytes.HasPrefix(b[i:], want) {
				t.Fatalf("extent %+v at %#x: %q, not %q", e, i, b[i:i+16], want)
			}
		}
		size += e.Size
	}
	if size != window {
		t.Errorf("extents of %d bytes, a window of %d", size, window)
	}
	testkit.OK(t, m.PowerOff(t.Context()))
}
