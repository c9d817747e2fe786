package selftests

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"vnic.dev/vnic/internal/proc"
)

//go:embed preload/gpu-memory.c
var preload string

// Preload is the path, below the tests' directory, of a library that binds a program's memfds to the NUMA node in
// GPU_NODE, if that is set.
const Preload = "vnic/gpu-memory.so"

// PythonPath is the directory of sitecustomize.py, below the tests' directory. Python imports sitecustomize at its
// start if PYTHONPATH names the directory.
const PythonPath = "vnic"

//go:embed preload/sitecustomize.py
var sitecustomize string

// devmemPrograms are the programs whose memfds must be in a GPU's memory.
var devmemPrograms = []string{"drivers/net/hw/ncdevmem"}

// wrapper is the script in place of a program of devmemPrograms.
const wrapper = `#!/bin/sh
if [ -n "$GPU_NODE" ]; then export LD_PRELOAD=/ks/` + Preload + `; fi
exec "$0.real" "$@"
`

// buildPreload builds the library Preload in ks, and installs the wrappers and sitecustomize.py there.
func (m *maker) buildPreload(ctx context.Context, ks string) error {
	out := filepath.Join(ks, Preload)
	c := out + ".c"
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{filepath.Join(ks, PythonPath, "sitecustomize.py"): sitecustomize,
		c: preload} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	bin := filepath.Join(m.tools.Dir, "usr/bin")
	if _, err := (proc.Command{}).Run(ctx, filepath.Join(bin, "gcc"), "--sysroot="+m.tools.Dir, "-B", bin, "-O2", "-Wall",
		"-shared", "-fPIC", "-o", out, c); err != nil {
		return fmt.Errorf("build %s: %w", Preload, err)
	}
	for _, p := range devmemPrograms {
		p = filepath.Join(ks, p)
		if err := os.Rename(p, p+".real"); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(wrapper), 0o755); err != nil {
			return err
		}
	}
	return os.Remove(c)
}
