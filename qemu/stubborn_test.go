package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A QEMU that answers nothing and ignores signals is killed, and so much of it goes that nothing is left.
func TestStubbornQEMUIsKilled(t *testing.T) {
	nothingLeft(t)
	defer func(g time.Duration) { grace = g }(grace)
	grace = 20 * time.Millisecond
	path := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ntrap '' TERM\necho words >&2\nwhile :; do sleep 1000; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{
		QEMU: Binary{Args: []string{path}}, Kernel: Kernel{Image: "/dev/null"}, Accel: AccelTCG,
		BootLimit: 200 * time.Millisecond,
	})
	var e *RunError
	if !errors.As(err, &e) || !errors.Is(err, ErrNoInit) {
		t.Fatalf("got %v", err)
	}
	if strings.Join(e.Stderr, " ") != "words" {
		t.Errorf("stderr: %q", e.Stderr)
	}
}

func TestMissingProgramIsReported(t *testing.T) {
	nothingLeft(t)
	_, err := Start(t.Context(), Config{QEMU: Binary{Args: []string{"/no/such/qemu"}}, Kernel: Kernel{Image: "/dev/null"}, Accel: AccelTCG})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
