// Package machinetest boots guests for tests. It fetches missing files, and fails a test whose guest cannot
// boot.
package machinetest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	_ "vnic.dev/vnic/internal/guestbin" // tests' guests run the program built by make
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// Images fetches QEMU and a kernel for NICs of these models, and builds the initramfs of o, with the models'
// modules if o.Modules is nil. It releases them when the test ends.
func Images(t *testing.T, models []string, o guestimages.Options) *machine.Images {
	t.Helper()
	boots(t)
	step := ""
	progress := func(p assets.Progress) {
		if now := p.Step + " " + p.What; now != step {
			step = now
			t.Log(now, p.Total)
		}
	}
	im, err := machine.Fetch(t.Context(), assets.Options{IgnoreSystemQEMU: true, Progress: progress}, models, t.Logf)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, im.Close()) })
	if o.Modules == nil {
		for _, m := range models {
			o.Modules = append(o.Modules, machine.SoftwareFor(m).Modules...)
		}
	}
	testkit.OK(t, im.BuildImage(t.Context(), o))
	return im
}

// InMakeTest allows guests without VNIC_LONG, as in `make test`, but not with -short.
var InMakeTest bool

// boots skips a test with -short, or if neither InMakeTest nor VNIC_LONG is set.
func boots(t *testing.T) {
	t.Helper()
	if !InMakeTest || testing.Short() {
		testkit.Boots(t)
	}
}

// Program builds a guest program, and returns its path.
func Program(t *testing.T, pkg string) string {
	t.Helper()
	boots(t)
	dir := filepath.Join(t.TempDir(), filepath.Base(pkg))
	testkit.OK(t, os.Mkdir(dir, 0o755))
	path := testkit.Must(guestimages.BuildProgram(t.Context(), pkg, dir))(t)
	return path
}

// Lab opens a lab that closes when the test ends. If log is nil, warnings and errors go to the test's output.
func Lab(t *testing.T, d lab.Description, log *slog.Logger) *lab.Lab {
	t.Helper()
	if log == nil {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	l := testkit.Must(lab.Open(d, lab.Options{Farewell: time.Duration(limits.GuestEnd), Log: log}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	return l
}

// Boot boots a guest, which ends with the test; the end of its console is logged if the test fails.
func Boot(t *testing.T, im *machine.Images, hw *lab.Machine, c machine.Config) *machine.Guest {
	t.Helper()
	return BootAll(t, im, Guest{hw, c})[0]
}

// Guest has the arguments of Boot.
type Guest struct {
	Machine *lab.Machine
	Config  machine.Config
}

var booted atomic.Int32

// Booted returns how many guests Boot and BootAll have tried to boot, plus the numbers given to Count.
func Booted() int { return int(booted.Load()) }

// Count counts guests that a program boots for a test.
func Count(n int) { booted.Add(int32(n)) }

// BootAll is Boot for several guests at once.
func BootAll(t *testing.T, im *machine.Images, list ...Guest) []*machine.Guest {
	t.Helper()
	guests, errs := make([]*machine.Guest, len(list)), make([]error, len(list))
	Count(len(list))
	var done sync.WaitGroup
	for i, g := range list {
		if g.Config.Name == "" {
			g.Config.Name = t.Name()
		}
		done.Go(func() { // t's context ends before Cleanup
			guests[i], errs[i] = im.Boot(context.WithoutCancel(t.Context()), g.Machine, g.Config)
		})
	}
	done.Wait()
	for _, g := range guests {
		if g != nil {
			t.Cleanup(func() { end(t, g) })
		}
	}
	testkit.OK(t, errors.Join(errs...))
	return guests
}

func end(t *testing.T, g *machine.Guest) {
	err := g.Close()
	if t.Failed() {
		console := g.Console()
		for line := range strings.Lines(string(console[max(0, len(console)-16<<10):])) {
			t.Log(agent.Plain(strings.TrimRight(line, "\r\n")))
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
