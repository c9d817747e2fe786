// Package treetest makes small checkouts for the tests of the tools.
package treetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// New makes a git checkout in a temporary directory, with these files, uncommitted, and returns the directory.
func New(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	for name, text := range files {
		Write(t, filepath.Join(dir, name), text)
	}
	return dir
}

// Write writes a file, and makes its directory.
func Write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Script writes an executable file.
func Script(t *testing.T, name, text string) {
	t.Helper()
	Write(t, name, text)
	if err := os.Chmod(name, 0o755); err != nil {
		t.Fatal(err)
	}
}
