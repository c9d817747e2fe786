package gvelab

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
)

// Sends that nothing follows go on when a queue is bound or unbound: what the driver leaves in the queueing disciplines
// of its transmit queues (docs/specs/gve.md, 11) is sent by devmem/kernel. The guest goes on until it was, and has a
// second CPU, as the kernel's choice of a queue is one of CPUs too.
//
// Invariant: devmem/kernel: A bind or unbind of a queue leaves no packet waiting at a transmit queue.
func TestSendsSurviveTheBindingOfQueues(t *testing.T) {
	b := newBenchOf(t, 2, 4*time.Minute, labtest.Log(t), nil)
	b.do("sends go on while a queue is bound and unbound", OpOneWay, Args{Times: 10})
	b.judge()
	testkit.NoError(t, b.PowerOff(t.Context()))
}
