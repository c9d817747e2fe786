package rdma

import (
	"strings"
	"syscall"
	"testing"
	"time"

	_ "vnic.dev/vnic/internal/guestbin" // guests of the tests run the guest program that make has built
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

// A guest in QEMU puts or gets three rounds; then guest 1's QEMU is killed, and the error names guest 1.
//
// Invariant: vnic rdma: guests of both device models put and get; when one is killed the other ends.
func TestMachines(t *testing.T) {
	testkit.Boots(t)
	for i, nic := range [][]string{{lab.Virtio}, {lab.GVE}, {lab.GVE, lab.Virtio}} {
		o := options(t, []string{Put, Get}[i%2], 4<<20)
		o.InProc, o.NIC, o.Fetch = false, nic, assets.Options{IgnoreSystemQEMU: true}
		o.Memory, o.Rounds = 256<<20, maxRounds
		var judged bool
		o.moved = func(s *session.Set, r *Run, round int) {
			if round < 2 {
				return
			}
			for _, e := range []*End{&r.Requester, &r.Responder} {
				if wrong := e.wrong(GPU, r.Bytes); len(wrong) > 0 || r.Error != "" || e.Device-e.Again != 3*o.Size {
					t.Errorf("%v, %q: %+v", wrong, r.Error, e)
				}
			}
			if !judged {
				testkit.OK(t, syscall.Kill(s.Nodes[1].QEMU.PID(), syscall.SIGKILL))
			}
			judged = true
		}
		_, err := do(t, &o)
		testkit.ErrorSays(t, err, "guest guest1", "what it ended")
		testkit.Equal(t, "rounds were judged", judged, true)
	}
}

// paging returns options for guests whose driver moves pages between RAM and GPU.
func paging(t *testing.T, nic string) Options {
	o := options(t, Put, 0)
	o.InProc, o.NIC, o.Fetch = false, []string{nic}, assets.Options{IgnoreSystemQEMU: true}
	o.Memory, o.MRs, o.Pages, o.Migrate, o.Time = 256<<20, []string{OnDemand}, 256, 500, time.Second
	return o
}

// A NIC writes and reads the memory of a program whose pages move to the GPU and back.
//
// Invariant: vnic rdma: pages of a guest's program move while a NIC of either model writes and
// reads them: no byte is lost, and none is written to a page's former place.
func TestPaging(t *testing.T) {
	testkit.Boots(t)
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		for _, op := range []string{Put, Get} {
			o := paging(t, nic)
			o.Op = op
			rep, err := do(t, &o)
			testkit.OK(t, err)
			r := &rep.Runs[0]
			p, e := r.Pages, &r.Responder
			if !r.Verified || r.Bytes != uint64(r.Rounds)*o.Size || e.Device+e.Host-e.Again != r.Bytes || e.Device == 0 ||
				e.Host == 0 {
				t.Errorf("%+v", r)
			}
			if p.AfterAck > 0 || p.Looked == 0 || p.MapsP2P == 0 || p.MapsHost == 0 || p.ToGPU == 0 || p.ToRAM == 0 ||
				p.Invalidations == 0 || p.Refused > 0 || p.Quarantined {
				t.Errorf("%+v", p)
			}
		}
	}
}

// The run's error describes the injected fault of paging and, where disturbed checks it, that another queue pair has
// gone on.
func TestPagingFaults(t *testing.T) {
	testkit.Boots(t)
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		for _, c := range []struct {
			fault string
			says  []string
		}{
			{Stale, []string{"written to after the NIC had acknowledged", "not what"}},
			{NeverAck, []string{"guest guest1's NIC did not acknowledge in time", "quarantine"}},
			{RemoveGPU + "=1s", []string{"guest guest1's GPU was removed", "all pages, in RAM",
				"operation error, says the peer"}},
			{Kill + "=1s", []string{"program, whose memory it was, was killed", "let go of all pages",
				"another queue pair has gone on", "operation error, says the peer"}},
			{NeverAck + "," + Kill + "=1s", []string{"with 1 wait for the NIC in vain", "another queue pair has gone on"}},
			{BadPage + "=9", []string{"did not get page 9", "has moved all others", "operation error, says the peer"}},
		} {
			t.Run(nic+" "+c.fault, func(t *testing.T) {
				o := paging(t, nic)
				if o.Fault = c.fault; strings.HasPrefix(c.fault, NeverAck+",") {
					o.Migrate = 0 // the program's exit is to be the first to wait for the NIC
				}
				_, err := do(t, &o)
				testkit.ErrorSays(t, err, c.says...)
			})
		}
	}
}
