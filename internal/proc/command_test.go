package proc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestCommandIsKilledWithItsGroup(t *testing.T) {
	testkit.LeavesNothing(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := Command{Stdout: func(line string) {
		if line == "ready" {
			cancel()
		}
	}}
	_, err := c.Run(ctx, "sh", "-c", "sleep 1000 & echo ready; wait")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestCommandErrorHasItsWords(t *testing.T) {
	out, err := Command{}.Run(t.Context(), "sh", "-c", "echo out")
	testkit.OK(t, err)
	testkit.Equal(t, "output", string(out), "out\n")
	_, err = Command{}.Run(t.Context(), "sh", "-c", "echo to you >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "to you") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
	if _, err = (Command{}).Run(t.Context(), filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestUnset(t *testing.T) {
	t.Setenv("VNIC_A", "a")
	t.Setenv("VNIC_B", "b")
	c := Command{Unset: []string{"VNIC_A", "VNIC_C"}, Env: []string{"VNIC_C=c"}}
	out, err := c.Run(t.Context(), "sh", "-c", "echo ${VNIC_A-none} $VNIC_B $VNIC_C")
	testkit.OK(t, err)
	testkit.Equal(t, "environment", strings.TrimSpace(string(out)), "none b c")
}
