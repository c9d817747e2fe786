package qemu

import (
	"context"
	"strings"
	"sync"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
)

// sandbox is what a QEMU of ours may not do any more once it runs: it starts no program, and gets no
// other rights or priorities (QEMU, qemu-seccomp.c). A guest that has taken it over is held by that.
const sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// sandboxes has what each QEMU of this process has said, by its command.
var sandboxes sync.Map

// hasSandbox asks a QEMU, once, whether it knows the sandbox: one that was built without libseccomp
// ends with an error at the option, before it prints its version. A QEMU of which no version is known
// is not asked.
func hasSandbox(ctx context.Context, b assets.Binary) bool {
	if b.Version == "" {
		return false
	}
	key := strings.Join(b.Args, "\x00")
	if known, ok := sandboxes.Load(key); ok {
		return known.(bool)
	}
	ctx, cancel := context.WithTimeout(ctx, limits.QEMUVersion.Here())
	defer cancel()
	_, err := proc.Command{Env: b.Env}.Run(ctx, b.Args[0],
		append(b.Args[1:len(b.Args):len(b.Args)], "-sandbox", sandbox, "--version")...)
	if ctx.Err() == nil {
		sandboxes.Store(key, err == nil)
	}
	return err == nil
}
