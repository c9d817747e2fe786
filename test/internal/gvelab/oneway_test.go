package gvelab

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
)

// The guest has two CPUs, as the kernel chooses a queue also by CPU (docs/specs/gve.md, 11).
//
// Invariant: devmem/kernel: A bind or unbind of a queue leaves no packet waiting at a transmit queue.
func TestSendsSurviveTheBindingOfQueues(t *testing.T) {
	b := newBenchOf(t, 2, 4*time.Minute, labtest.Log(t), nil)
	b.do("sends go on while a queue is bound and unbound", OpOneWay, Args{Times: 10})
	b.judge()
	testkit.NoError(t, b.PowerOff(t.Context()))
}
