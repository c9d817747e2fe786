package storage

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/guest-images/guestnvme"
	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/labtest"
)

// A guest reads Linux's nvmet in another one, and writes; the initiator of a third guest's own kernel reads what was
// written. Negative control: it finds the byte that the host changes then.
//
// Invariant: vnic block: what is read from Linux's target is in GPU memory, and what is written from there is what the
// kernel's own initiator reads; payload lies in device memory.
func TestKernelReadsWhatWasWritten(t *testing.T) {
	if testing.Short() {
		t.Skip("boots QEMU")
	}
	testkit.LeavesNothing(t)
	o := Defaults()
	o.Size, o.Block, o.Depth, o.Seed, o.Random, o.GPUMemory = 8<<20, 20<<10, 8, 11, true, 64<<20
	o.Size -= o.Size % o.Block // heads of 20 KiB straddle pages
	o.NIC, o.Memory, o.Fetch = []string{lab.GVE}, 256<<20, assets.Options{IgnoreSystemQEMU: true}
	if !labtest.Long() {
		o.NIC = []string{lab.Virtio}
	}
	o.Log, o.Timeout = labtest.Log(t), testkit.Patience
	o.Servers = []guests.Server{{Name: "judge", Model: lab.Virtio, Modules: guestnvme.InitiatorModules}}
	testkit.OK(t, o.Complete())
	p := testkit.Must(o.Peer(t.Context()))(t)
	defer func() { testkit.OK(t, p.Close()) }()
	judged := false
	o.judge = func(ctx context.Context, s *guests.Set, server netip.AddrPort) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		a := s.Servers[1].QEMU.Agent()
		c, err := guestnvme.Connect(ctx, a, guestnvme.Connection{Addr: server, NQN: ownNQN})
		if err != nil {
			return err
		}
		all := guestnvme.Range{Device: c.Namespaces[0].Device, Len: o.Size}
		same, err := guestnvme.Compare(ctx, a, all, o.Seed+1)
		testkit.Equal(t, "bytes that the kernel's initiator finds as written", same, o.Size)
		if err != nil {
			return err
		}
		p.disk[4<<20] ^= 1
		same, err = guestnvme.Compare(ctx, a, all, o.Seed+1)
		testkit.Equal(t, "bytes before the one that was changed", same, 4<<20)
		judged = true
		return err
	}
	rep, err := Do(t.Context(), &o, p)
	testkit.OK(t, err)
	testkit.Equal(t, "judged", judged, true)
	var did []string
	for i := range rep.Runs {
		r := &rep.Runs[i]
		did = append(did, r.What)
		if r.Verified == nil || !*r.Verified || r.Bytes != o.Size || r.What != Write && r.RX.Host > 0 {
			t.Errorf("%+v", r)
		}
	}
	if !slices.Equal(did, []string{Read, Write, ReadBack}) || rep.Runs[0].Mode != transfer.Devmem {
		t.Errorf("did %v", did)
	}
}
