package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestUseSaysWhatOfALabItLeavesOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.yaml")
	testkit.OK(t, os.WriteFile(path, []byte(`guests: {a: {sockets: [{name: s}],
  gpus: [{name: gpu0, below: s, memory: 64M}],
  nics: [{name: nic0, below: s}]}}
script: [{at: 1h, set: link a.nic0 loss=0}]
`), 0o600))
	var out, errs bytes.Buffer
	args := []string{"load", "--guest", "inproc", "--sandbox", "off", "--size", "1M", "--lab", path}
	status := realMain(t.Context(), args, &out, &errs)
	if want := "this command does nothing with its script"; status != 0 || !strings.Contains(errs.String(), want) {
		t.Errorf("status %d, %s", status, errs.String())
	}
}
