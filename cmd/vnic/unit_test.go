package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// vnic serve accepts the flags of the systemd unit's ExecStart, with the defaults and the values in its comments.
func TestUnitStartsWhatServeTakes(t *testing.T) {
	unit := string(testkit.Must(os.ReadFile("../../packaging/vnic@.service"))(t))
	value := func(key string) string {
		_, rest, ok := strings.Cut(unit, key)
		if !ok {
			t.Fatalf("no %s in the unit", key)
		}
		v, _, _ := strings.Cut(rest, "\n")
		return v
	}
	start, ok := strings.CutPrefix(value("\nExecStart="), "@bindir@/vnic ")
	if !ok {
		t.Fatalf("it starts %s", start)
	}
	socket, _, _ := strings.Cut(value("\nEnvironment=VNIC_SOCKET="), " ")
	for _, tt := range []struct{ socket, group, args string }{
		{socket, "", ""},
		{value("#   VNIC_SOCKET="), "", value("#   VNIC_ARGS=")},
		{socket, strings.ReplaceAll(value("#   Environment=VNIC_GROUP="), "kvm", "root"), ""},
	} {
		line := strings.NewReplacer("${VNIC_SOCKET}", tt.socket, "$VNIC_GROUP", tt.group, "$VNIC_ARGS", tt.args,
			"%t", "/run", "%i", "a").Replace(start)
		var out, errs bytes.Buffer
		args := append(strings.Fields(line), "--print-memory-max", "2G")
		if status := realMain(t.Context(), args, &out, &errs); status != 0 || !strings.HasPrefix(out.String(), "MemoryMax=") {
			t.Errorf("%q: status %d: %s%s", args, status, errs.String(), out.String())
		}
	}
}
