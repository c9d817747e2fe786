package qemu

import (
	"context"
	"strings"
	"sync"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
)

// sandbox are the rights that a running QEMU loses: it starts no program, and gets no other
// privileges or priorities (QEMU, qemu-seccomp.c). This limits a guest that has taken over QEMU.
const sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// sandboxes has the answer of each QEMU of this process, by its command.
var sandboxes sync.Map

// hasSandbox asks a QEMU, once, whether it supports the sandbox: one built without libseccomp fails
// at the option, before it prints its version. It does not ask a QEMU whose version is unknown.
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
