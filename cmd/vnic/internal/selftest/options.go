package selftest

import (
	"io"
	"log/slog"
	"time"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/qemu"
)

// Options says what is run.
type Options struct {
	NIC      string // lab.GVE or lab.Virtio
	Programs []string
	MTU      int
	Timeout  time.Duration // of a program

	Fetch   assets.Options
	Source  string // a kernel's tree, whose tests are built
	Patched bool

	Accel   qemu.Accel
	Console io.Writer // gets the guest's console; may be nil
	Log     *slog.Logger

	Stage func(what string)
	Note  func(format string, args ...any)
	Tell  func(line string)
}
