package ether

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// MinRTO is never above netstack's maximum retransmission timeout: netstack would refuse that.
func TestMinRTOIsWhatNetstackTakes(t *testing.T) {
	ns := New()
	defer ns.Destroy()
	for _, d := range []time.Duration{time.Millisecond, time.Second, 2 * time.Minute, time.Hour} {
		testkit.OK(t, SetTCP(ns, MinRTO(d)))
	}
}
