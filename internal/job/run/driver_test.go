package run

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: vnic run: If Linux allows peer-to-peer where the lab's tree does not, payload is
// bounced and counted as bounced, and a note tells so before the transfer.
func TestLinuxAllowsWhatTheTreeRedirects(t *testing.T) {
	const machine = "driver: vnicgpu, memory: 256M, sockets: [{name: s0}], switches: [{name: w, below: s0}], " +
		"nics: [{name: nic0, below: w, model: gve}], gpus: [{name: gpu0, below: w, memory: 32M, acs-redirect: true}]"
	testkit.Boots(t)
	testkit.LeavesNothing(t)
	rep, _, notes, err := faulty(t, false, file(t, machine, ""), 1, 4<<20)
	if err != nil && !errors.Is(err, ErrProof) || rep == nil || len(rep.Rails) != 1 {
		t.Fatal(rep, err)
	}
	r := &rep.Rails[0]
	if r.where() != "PIX false device none/none host all/all" || !r.SHA256Match || r.BouncedBytes < 2*r.Bytes {
		t.Errorf("%s, digest matches: %v, bounced %d of %d", r.where(), r.SHA256Match, r.BouncedBytes, r.Bytes)
	}
	for _, guest := range []string{"a", "b"} {
		want := guest + ": nic0-gpu0: Linux in this guest allows it: QEMU's switches have no ACS"
		if !slices.Contains(notes, want) {
			t.Errorf("no note %q", want)
		}
	}
	if t.Failed() {
		t.Log(err, strings.Join(notes, "\n"))
	}
}
