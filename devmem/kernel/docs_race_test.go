//go:build race

package kernel

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The test is for builds with the race detector, which need a C compiler anyway.
func TestSnippetCompiles(t *testing.T) {
	cc := cmp.Or(os.Getenv("CC"), "gcc")
	out, err := exec.CommandContext(t.Context(), cc, "-Wall", "-Wextra", "-Werror", "-O2", "-c", "-o",
		filepath.Join(t.TempDir(), "dmabuf.o"),
		"docs/dmabuf.c").CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", cc, err, out)
	}
}
