package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func script(t *testing.T, text string) Config {
	path := filepath.Join(t.TempDir(), "qemu")
	testkit.OK(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	return Config{QEMU: assets.Binary{Args: []string{path}}, Kernel: assets.Kernel{Image: "/dev/null"}, Accel: AccelTCG}
}

// A QEMU that ignores SIGTERM is ended when init has not reported in time.
func TestStubbornQEMUIsKilled(t *testing.T) {
	testkit.LeavesNothing(t)
	defer func(g limits.Limit) { grace = g }(grace)
	grace = limits.Limit(20 * time.Millisecond)
	c := script(t, "trap '' TERM\nwhile :; do sleep 1000; done")
	c.BootLimit = 200 * time.Millisecond
	if _, err := Start(t.Context(), c); !errors.Is(err, ErrNoInit) {
		t.Errorf("got %v", err)
	}
}

func TestEarlyEndIsReportedWithItsWords(t *testing.T) {
	testkit.LeavesNothing(t)
	_, err := Start(t.Context(), script(t, "seq 100 >&2; exit 3"))
	var e *RunError
	if !errors.As(err, &e) || !errors.Is(err, ErrExited) || e.Detail != "exit status 3" ||
		strings.Join(e.Stderr, " ") != "1 2 3 4 97 98 99 100" {
		t.Errorf("got %v", err)
	}
}

func TestDeviceThatQEMULacksIsNamed(t *testing.T) {
	testkit.LeavesNothing(t)
	c := script(t,
		`echo "qemu-system-x86_64: -device {...}: 'vfio-user-pci' is not a valid device model name" >&2; exit 1`)
	c.QEMU.Version = "10.1.0"
	_, err := Start(t.Context(), c)
	var m *assets.Missing
	if !errors.As(err, &m) || !errors.Is(err, ErrNoDevice) ||
		!strings.HasPrefix(err.Error(), "guest: QEMU 10.1.0: this QEMU lacks a device: vfio-user-pci: ") {
		t.Errorf("got %v", err)
	}
}

func TestWhatAKernelNeedsIsSaidOfOneThatWasGiven(t *testing.T) {
	testkit.LeavesNothing(t)
	defer func(g limits.Limit) { grace = g }(grace)
	grace = limits.Limit(20 * time.Millisecond)
	for source, want := range map[string]bool{assets.SourceGiven: true, assets.SourceCache: false} {
		c := script(t, "exec sleep 1000")
		c.Kernel.Source, c.BootLimit = source, 10*time.Millisecond
		if _, err := Start(t.Context(), c); !errors.Is(err, ErrNoInit) || strings.Contains(err.Error(), kernelNeeds) != want {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
func TestModuleThatTheKernelRefusesIsNamed(t *testing.T) {
	died := &agent.PanicError{Panic: agent.Panic{Status: "init", Output: "module gve: exec format error\n"}}
	m := &Machine{name: "guest", kernel: assets.Kernel{Version: "7.2.0", Source: assets.SourceGiven}}
	err := m.agentEnded(died)
	var missing *assets.Missing
	if !errors.As(err, &missing) ||
		!strings.HasPrefix(err.Error(),
			"guest: kernel 7.2.0: the guest's kernel does not load module gve: exec format error: give") {
		t.Errorf("got %v", err)
	}
	m.kernel.Source = assets.SourceCache // a fetched kernel has matching modules, so there is no advice
	if err := m.agentEnded(died); errors.As(err, &missing) || !errors.Is(err, ErrAgent) {
		t.Errorf("got %v", err)
	}
}

func TestMissingProgramIsReported(t *testing.T) {
	testkit.LeavesNothing(t)
	_, err := Start(t.Context(), Config{QEMU: assets.Binary{Args: []string{"/no/such/qemu"}},
		Kernel: assets.Kernel{Image: "/dev/null"}, Accel: AccelTCG})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// Invariant: qemu: A guest without any output is ended early on request, and the error names KVM if
// KVM ran it.
func TestSilentGuestIsEnded(t *testing.T) {
	testkit.LeavesNothing(t)
	defer func(g limits.Limit) { grace = g }(grace)
	grace = limits.Limit(20 * time.Millisecond)
	t.Setenv(envKVMDevice, os.DevNull)
	for accel, kvm := range map[Accel]bool{AccelKVM: true, AccelTCG: false} {
		c := script(t, "exec sleep 1000")
		c.Accel, c.Silence, c.Cache = accel, 20*time.Millisecond, t.TempDir()
		_, err := Start(t.Context(), c)
		var e *RunError
		if !errors.Is(err, ErrSilent) || !errors.As(err, &e) || e.KVM != kvm {
			t.Errorf("%s: %v", accel, err)
		}
	}
}

func TestKVMIsBlamed(t *testing.T) {
	testkit.LeavesNothing(t)
	t.Setenv(envKVMDevice, os.DevNull)
	c := script(t, "echo KVM internal error. Suberror: 1 >&2; exit 1")
	c.Accel, c.Cache = AccelKVM, t.TempDir()
	_, err := Start(t.Context(), c)
	var e *RunError
	if !errors.As(err, &e) || !e.KVM || len(e.Stderr) == 0 {
		t.Errorf("%v", err)
	}
}

// Invariant: qemu: A guest is restarted with TCG if and only if KVM may have caused its end.
func TestWhatKVMIsToBlameFor(t *testing.T) {
	lines := func(l ...string) []string { return l }
	for _, c := range []struct {
		name   string
		e      RunError
		booted bool
		want   bool
	}{
		{"internal error", RunError{Err: ErrStopped, Detail: "internal-error"}, true, true},
		{"an image's disk is full", RunError{Err: ErrStopped, Detail: "io-error"}, true, false},
		{"the guest's kernel panics", RunError{Err: ErrStopped, Detail: "guest-panicked"}, true, false},
		{"silent", RunError{Err: ErrSilent}, false, true},
		{"late", RunError{Err: ErrNoInit}, false, true},
		{"dies without a word", RunError{Err: ErrExited, Detail: "exit status 1"}, false, true},
		{"dies by a signal", RunError{Err: ErrExited, Detail: "signal: aborted", Stderr: lines("warning: x")}, false, true},
		{"its arguments are wrong", RunError{Err: ErrExited, Detail: "exit status 1", Stderr: lines("-x: invalid option")},
			false, false},
		{"is called by it", RunError{Err: ErrExited, Detail: "exit status 1", Stderr: lines("qemu-kvm: -x: invalid option")},
			false, false},
		{"has it in a file's name", RunError{Err: ErrExited, Detail: "exit status 1",
			Stderr: lines("-drive file=/srv/kvm/x: Could not open '/srv/kvm/x': No such file")}, false, false},
		{"dies of an assertion", RunError{Err: ErrExited, Detail: "signal: aborted",
			Stderr: lines("qemu: ../accel/kvm/kvm-all.c:1: kvm_set_x: Assertion `r == 0' failed.")}, true, true},
		{"says kvm", RunError{Err: ErrExited, Detail: "exit status 1", Stderr: lines("failed to initialize kvm")},
			false, true},
		{"says KVM later", RunError{Err: ErrExited, Detail: "signal: killed", Stderr: lines("x", "KVM internal error.")}, true,
			true},
		{"ends later", RunError{Err: ErrExited, Detail: "signal: killed"}, true, false},
		{"panics", RunError{Err: ErrKernelPanic}, false, false},
	} {
		testkit.Equal(t, c.name, c.e.ofKVM(c.booted), c.want)
	}
}
