package servelab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/labtest"
)

// QEMU 10.0, with all of TestServeStrangersQEMU that it can do; of gve it says what vnic has said
// that it would.
func TestServeOldQEMU(t *testing.T) {
	if testing.Short() || !labtest.Long() {
		t.Skip("in the large form only (VNIC_LONG)")
	}
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
		flags, said := flagsOf(ctx, t, vnic, socket)
		got, err := exec.CommandContext(ctx, old, append([]string{"-display", "none"}, flags...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(got), why) {
			t.Errorf("QEMU 10.0: %v: %s", err, got)
		}
		if !strings.Contains(said, "QEMU 10.1 or newer") || !strings.Contains(said, why) {
			t.Errorf("vnic serve has not said it: %s", said)
		}
		got, err = exec.CommandContext(ctx, vnic, "run", "--nic", lab.GVE, "--qemu", old).CombinedOutput()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 3 ||
			!strings.Contains(string(got), "too old for vfio-user: install 10.1 or newer") {
			t.Errorf("vnic run: %v: %s", err, got)
		}
	})
}

// flagsOf gives the arguments for QEMU that vnic serve prints, and its text for people.
func flagsOf(ctx context.Context, t *testing.T, vnic, socket string) (args []string, text string) {
	t.Helper()
	for _, format := range []string{"--json", ""} {
		a := []string{"serve", "--nic", lab.GVE, "--socket-path", socket}
		if format != "" {
			a = append(a, format)
		}
		c := exec.CommandContext(ctx, vnic, a...)
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		testkit.OK(t, err)
		if format != "" {
			var rep report
			testkit.OK(t, json.NewDecoder(out).Decode(&rep))
			args = rep.Ports[0].QEMU
		} else {
			var b bytes.Buffer
			for buf := make([]byte, 4096); !strings.Contains(b.String(), "is not a valid device model name"); {
				n, err := out.Read(buf)
				b.Write(buf[:n])
				if err != nil {
					t.Fatalf("%v: %s", err, &b)
				}
			}
			text = b.String()
		}
		testkit.OK(t, c.Process.Signal(syscall.SIGTERM))
		_ = c.Wait()
	}
	return args, text
}
