package run

import (
	"context"
	"errors"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Two rails are slow, so that they last until a device is removed; the third is fast.
const removalLab = `
    memory: 384M,
    sockets: [{name: s0}],
    switches: [{name: sw0, below: s0}],
    nics: [{name: nic0, below: sw0, rate: 2Mbit}, {name: nic1, below: s0, rate: 2Mbit}, {name: nic2, below: sw0}],
    gpus: [{name: gpu0, below: sw0, memory: 64M}, {name: gpu1, below: s0, memory: 64M},
           {name: gpu2, below: sw0, memory: 64M}]`

// A NIC of one rail's sender and a GPU of another rail's receiver are removed: both transfers end with an error that
// names the device, and the third rail is proved.
//
// Invariant: lab: A device that is removed while it is used ends its own transfers with ENODEV, and no others.
func TestRemovalEndsItsOwnRails(t *testing.T) {
	for _, name := range []string{"inproc", "qemu"} {
		t.Run(name, func(t *testing.T) {
			if name == "qemu" {
				testkit.Boots(t)
			}
			testkit.LeavesNothing(t)
			f := file(t, removalLab, "script: [{at: 100ms, set: nic a.nic0 remove}, {at: 100ms, set: gpu b.gpu1 remove}]")
			rep, _, notes, err := faulty(t, name == "inproc", f, 3, 8<<20)
			testkit.ErrorIs(t, err, ErrRemoved)
			testkit.ErrorSays(t, err, "a.nic0 to b.nic0: a.nic0: removed while it was used", "no such device",
				"a.nic1 to b.nic1: b.gpu1: removed while it was used")
			if errors.Is(err, ErrProof) || rep == nil || len(rep.Rails) != 1 || rep.Rails[0].From != "a.nic2" ||
				!rep.Rails[0].SHA256Match || rep.Rails[0].TX.Host+rep.Rails[0].RX.Host > 0 {
				t.Errorf("%v; %+v", err, rep)
			}
			for _, want := range []string{"a.nic0: has been removed", "b.gpu1: has been removed"} {
				if !slices.Contains(notes, want) {
					t.Errorf("no note %q in %q", want, notes)
				}
			}
		})
	}
}

func TestRemovalOfTheOnlyRail(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, what := range []string{"nic b.nic0 remove", "gpu a.gpu0 remove"} {
		rep, _, _, err := faulty(t, true, faultyLab(t, NICVirtio, nil, []string{"100ms " + what}), 1, 8<<20)
		if !errors.Is(err, ErrRemoved) || rep != nil {
			t.Errorf("%s: %v, report %+v", what, err, rep)
		}
	}
}

// At a barrier the others do not wait for a participant that has left, nor after the context's end.
func TestBarrierWithoutThoseWhoLeave(t *testing.T) {
	b := newBarrier(t.Context(), 3)
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		b.wait()
	}()
	b.leave()
	b.wait()
	<-waits
	b.leave()
	b.wait()
	b.leave()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	newBarrier(ctx, 2).wait()
}
