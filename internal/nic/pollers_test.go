package nic_test

import (
	"runtime"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// A started queue goes to the thread with the fewest queues, and a stopped queue leaves its thread.
func TestPollersShareTheQueues(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	pollers := testkit.Must(nic.NewPollers(3, false))(t)
	defer func() {
		pollers.Close()
		pollers.Close()
		testkit.Equal(t, "processors in the end", runtime.GOMAXPROCS(0), before)
	}()
	testkit.Equal(t, "processors", runtime.GOMAXPROCS(0), before+3)
	shares := func(want ...int) {
		t.Helper()
		if got := pollers.Loads(); !slices.Equal(got, want) {
			t.Errorf("queues of the threads: %v, want %v", got, want)
		}
	}
	ds := toys(t, 7, nic.SenderOptions{Pollers: pollers})
	shares(0, 0, 0)
	for _, d := range ds {
		d.start()
	}
	shares(3, 2, 2)
	for i, d := range ds {
		to := ds[(i+1)%len(ds)]
		to.rx.postNew(2)
		d.sendTo(to, 1, 2)
		to.receives(d, 1, 2)
	}
	for _, d := range ds {
		d.tx.sender.Stop()
	}
	shares(0, 0, 0)
}

// If frames of one of a thread's two queues wait for a receiver, frames of the other one arrive meanwhile.
func TestAQueueThatIsFullKeepsNobodyWaiting(t *testing.T) {
	pollers := testkit.Must(nic.NewPollers(1, true))(t)
	defer pollers.Close()
	ds := toys(t, 4, nic.SenderOptions{Pollers: pollers, Patience: patient.Patience})
	full, slow, other, to := ds[0], ds[1], ds[2], ds[3]
	full.start()
	other.start()
	for seq := range 3 * toyBatch {
		full.sendTo(slow, seq)
	}
	for seq := range 100 {
		to.rx.postNew(1)
		other.sendTo(to, seq)
		to.receives(other, seq)
	}
	slow.rx.postNew(3 * toyBatch)
	for seq := range 3 * toyBatch {
		slow.receives(full, seq)
	}
	full.tx.sender.Stop()
	other.tx.sender.Stop()
}

func TestPollersAreChecked(t *testing.T) {
	for _, n := range []int{0, -1} {
		testkit.ErrorSays(t, testkit.Err(nic.NewPollers(n, false)), "threads that poll")
	}
}
