package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// The error names the sum of the guests' RAM and the GPUs' memory.
func TestLabThatWantsTooMuchMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "large.yaml")
	testkit.OK(t, os.WriteFile(file, []byte("guests: {a: {memory: 3T, nics: [{name: n}], gpus: [{name: g, memory: 1T}]}}"),
		0o644))
	var out, errs bytes.Buffer
	status := realMain(t.Context(), []string{"boot", "--lab", file, "--", "true"}, &out, &errs)
	if first, _, _ := strings.Cut(errs.String(), "\n"); status != exitFailed || !strings.Contains(first, "4.0 TiB") {
		t.Errorf("status %d: %s", status, &errs)
	}
}
