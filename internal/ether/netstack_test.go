package ether

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// netstack refuses a least retransmission timeout above its largest one; a machine may be as slow as that.
func TestMinRTOIsWhatNetstackTakes(t *testing.T) {
	ns := New()
	defer ns.Destroy()
	for _, d := range []time.Duration{time.Millisecond, time.Second, 2 * time.Minute, time.Hour} {
		testkit.OK(t, SetTCP(ns, MinRTO(d)))
	}
}
