package qemu

import (
	"context"
	"strings"
	"sync"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
)

// sandbox are rights that a QEMU gives up, in case its guest takes it over: it starts no program, and gets no
// privileges or priorities (QEMU, qemu-seccomp.c).
const sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// sandboxes has hasSandbox's results by command.
var sandboxes sync.Map

// hasSandbox asks a QEMU of known version, once, whether it has the sandbox: without libseccomp it fails at
// the option.
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
	_, err := b.Run(ctx, "-sandbox", sandbox, "--version")
	if ctx.Err() == nil {
		sandboxes.Store(key, err == nil)
	}
	return err == nil
}
