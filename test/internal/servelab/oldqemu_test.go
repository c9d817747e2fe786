package servelab

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// With QEMU 10.0 two cases of TestServeStrangersQEMU pass. For a gVNIC vnic serve prints which QEMU it needs and how an
// older one fails, and vnic run refuses QEMU 10.0. The test needs a mirror that has QEMU 10.0.
func TestServeOldQEMU(t *testing.T) {
	testkit.Boots(t)
	find := exec.CommandContext(t.Context(), "../../../tools/qemu", "trixie", "bookworm-backports")
	find.Stderr = t.Output()
	out, err := find.Output()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) && e.ExitCode() == 3 {
		t.Skip("this machine's mirror has QEMU 10.0 neither in trixie nor in bookworm-backports")
	}
	if err != nil {
		t.Fatalf("tools/qemu: %v", err)
	}
	old := strings.TrimSpace(string(out))
	t.Run("virtio, QEMU listens", func(t *testing.T) {
		t.Setenv(assets.EnvQEMU, old)
		try(t, func(b *bench) { b.client = true })
	})
	t.Run("stock", func(t *testing.T) {
		t.Setenv(assets.EnvQEMU, old)
		try(t, func(b *bench) { b.stock = true })
	})
	t.Run("gve", func(t *testing.T) {
		const why = "'vfio-user-pci' is not a valid device model name"
		vnic := program(t)
		socket := filepath.Join(t.TempDir(), "g")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b := &bench{T: t, vnic: vnic}
		s := b.serve(ctx, "--nic", lab.GVE, "--socket-path", socket)
		args := append([]string{"-display", "none"}, s.rep.Ports[0].QEMU...)
		got, err := exec.CommandContext(ctx, old, args...).CombinedOutput()
		s.term()
		message := b.words(ctx, socket, why)
		if err == nil || !strings.Contains(string(got), why) {
			t.Errorf("QEMU 10.0: %v: %s", err, got)
		}
		if !strings.Contains(message, "QEMU 10.1 or newer") || !strings.Contains(message, why) {
			t.Errorf("vnic serve has not said it: %s", message)
		}
		got, err = exec.CommandContext(ctx, vnic, "run", "--nic", lab.GVE, "--qemu", old).CombinedOutput()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 3 ||
			!strings.Contains(string(got), "too old for vfio-user: install 10.1 or newer") {
			t.Errorf("vnic run: %v: %s", err, got)
		}
	})
}

func (b *bench) words(ctx context.Context, socket, last string) string {
	b.Helper()
	s := b.launch(ctx, "--nic", lab.GVE, "--socket-path", socket)
	defer s.kill()
	b.must("vnic serve", s.stdout.says(ctx, s.Child, last))
	s.term()
	return s.stdout.String()
}
