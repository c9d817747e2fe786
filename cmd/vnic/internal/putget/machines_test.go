package putget

import (
	"syscall"
	"testing"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/labtest"
)

// A guest in QEMU writes another's GPU, twice, and every byte and counter is right. Then the other one is killed: that
// is said first, with what it ended, and no QEMU is left.
//
// Invariant: vnic rdma: guests of both device models put and get; when one is killed the other ends.
func TestMachines(t *testing.T) {
	if testing.Short() {
		t.Skip("boots QEMU")
	}
	nics := [][]string{{lab.Virtio}}
	if labtest.Long() {
		nics = append(nics, []string{lab.GVE}, []string{lab.GVE, lab.Virtio})
	}
	for i, nic := range nics {
		o := options(t, []string{Put, Get}[i%2], 4<<20)
		o.InProc, o.NIC, o.Fetch = false, nic, assets.Options{IgnoreSystemQEMU: true}
		o.Memory, o.Rounds = 256<<20, maxRounds
		var judged bool
		o.moved = func(s *guests.Set, r *Run, round int) {
			if round < 2 {
				return
			}
			for _, e := range []*End{&r.Requester, &r.Responder} {
				if wrong := e.wrong(GPU, r.Bytes); len(wrong) > 0 || r.Error != "" || e.Device-e.Again != 3*o.Size {
					t.Errorf("%v, %q: %+v", wrong, r.Error, e)
				}
			}
			if !judged {
				testkit.OK(t, syscall.Kill(s.Guests[1].QEMU.PID(), syscall.SIGKILL))
			}
			judged = true
		}
		_, err := do(t, &o)
		testkit.ErrorSays(t, err, "guest guest1", "what it ended")
		testkit.Equal(t, "rounds were judged", judged, true)
	}
}
