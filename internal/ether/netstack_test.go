package ether

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// SetTCP takes MinRTO(d) also for a d above netstack's maximum retransmission timeout. Netstack itself would refuse
// such a d.
func TestMinRTOIsWhatNetstackTakes(t *testing.T) {
	ns := New()
	defer ns.Destroy()
	for _, d := range []time.Duration{time.Millisecond, time.Second, 2 * time.Minute, time.Hour} {
		testkit.OK(t, SetTCP(ns, MinRTO(d)))
	}
}
