package clienttest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const program = "vnic.dev/vnic/internal/clienttest/devmem-clients"

// Invariant: devmem: The clients pass in a guest over Linux's device memory TCP and a mapped dma-buf, without any of
// vnic's code below package devmem; payload lies in the GPU's memory, by the NIC's count.
func TestProgramHasNoPackageOfTheGuest(t *testing.T) {
	const module = "vnic.dev/vnic/"
	out := testkit.Must(exec.CommandContext(t.Context(), "go", "list", "-deps", program).Output())(t)
	var list []string
	for p := range strings.FieldsSeq(string(out)) {
		if path, ours := strings.CutPrefix(p, module); ours {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	testkit.Equal(t, "packages", strings.Join(list, " "),
		"block block/nbd block/nvmetcp collective devmem devmem/kernel devmem/plain internal/clienttest "+
			"internal/clienttest/devmem-clients internal/deadline internal/devmembase internal/devmemtest internal/diagnosis "+
			"internal/elements internal/limits internal/scm internal/testkit loader")
}

func TestBenchWithoutAGPU(t *testing.T) {
	b, err := newBench("no-such-interface", 1<<20)
	testkit.Equal(t, "a bench without a GPU fails", err != nil, true)
	testkit.OK(t, b.close())
}
