package qemu

import (
	"context"
	"strings"
	"sync"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
)

// sandbox is the value of QEMU's option -sandbox. QEMU gives up rights, in case its guest takes it over: it can start
// no program, and change neither its privileges nor its priority (QEMU, qemu-seccomp.c).
const sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// sandboxes has hasSandbox's results, by QEMU's command.
var sandboxes sync.Map

// hasSandbox reports whether a QEMU of known version has the sandbox, and keeps the result unless it had to end QEMU:
// it runs QEMU with the option, at which a QEMU without libseccomp fails. If the version is unknown, it returns false.
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
