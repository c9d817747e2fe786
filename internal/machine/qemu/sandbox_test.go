package qemu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// A QEMU is asked once for its sandbox.
func TestSandboxWhereQEMUHasOne(t *testing.T) {
	for want, script := range map[bool]string{
		true:  "echo x >> \"$0.asked\"",
		false: "echo x >> \"$0.asked\"; echo '-sandbox support is not enabled in this QEMU binary' >&2; exit 1",
	} {
		path := filepath.Join(t.TempDir(), "qemu")
		testkit.OK(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
		b := assets.Binary{Args: []string{path}, Version: "11.1.0"}
		for range 3 {
			testkit.Equal(t, script, hasSandbox(t.Context(), b), want)
		}
		asked := testkit.Must(os.ReadFile(path + ".asked"))(t)
		testkit.Equal(t, "times asked", strings.Count(string(asked), "x"), 1)
		b.Version = ""
		testkit.Equal(t, "one of no version", hasSandbox(t.Context(), b), false)
	}
	c := Config{QEMU: assets.Binary{Args: []string{"qemu"}}, Kernel: assets.Kernel{Image: "/k"}}
	testkit.OK(t, c.complete())
	for _, on := range []bool{true, false} {
		args, _ := arguments(&c, AccelTCG, inherited{ram: []*os.File{sized(t, 1)}, sandbox: on})
		i := slices.Index(args, "-sandbox")
		if on && (i < 0 || args[i+1] != sandbox) || !on && i >= 0 {
			t.Errorf("sandbox %t: %q", on, args)
		}
	}
}
