package allreduce

import (
	"syscall"
	"testing"
	"time"

	_ "vnic.dev/vnic/internal/guestbin"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

// Four guests in QEMU, of both device models, are one ring; before the last row one guest is killed, and
// the error names it.
//
// Invariant: vnic allreduce: guests of both device models are ranks of one ring; when one is killed the others end.
func TestRingOfMachines(t *testing.T) {
	testkit.Boots(t)
	o := options(t, 4, 1, 3, 5, 100_001, 2)
	o.InProc, o.NIC, o.Fetch = false, []string{lab.GVE, lab.GVE, lab.Virtio}, assets.Options{IgnoreSystemQEMU: true}
	o.Memory, o.Timeout = 256<<20, 10*time.Second // a guest on a busy machine may not run for seconds
	var set *session.Set
	o.Hook = func(s *session.Set) { set = s }
	var ranks []Rank
	o.Progress = func(_ string, done, total uint64) {
		if done == total-1 {
			testkit.OK(t, syscall.Kill(set.Nodes[1].QEMU.PID(), syscall.SIGKILL))
		}
	}
	o.done = func(r []Rank, row *Row) {
		ranks = r
		if *row.OutOfPlace.Wrong+*row.InPlace.Wrong > 0 {
			t.Errorf("%+v", row)
		}
	}
	_, err := do(t, &o)
	testkit.ErrorSays(t, err, "guest guest1", "what it ended",
		"rank 0 (guest0): transfer.collective: rank 1: all-reduce, step ")
	for i := range ranks {
		if wrong := ranks[i].wrongCount("devmem"); wrong != "" || ranks[i].Expected.Out == 0 {
			t.Errorf("rank %d: %s: %+v", i, wrong, ranks[i])
		}
	}
	testkit.Equal(t, "ranks that were counted", len(ranks), 4)
}
