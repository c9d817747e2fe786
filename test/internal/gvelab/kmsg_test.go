package gvelab

import (
	"testing"
	"time"
)

func TestParseRecord(t *testing.T) {
	r, err := parseRecord("4,812,90129000,-;WARNING: net/core/dev.h:398 at x+0x5d/0x70; y\n SUBSYSTEM=net\n")
	if want := (Record{4, 812, 90129 * time.Millisecond, "WARNING: net/core/dev.h:398 at x+0x5d/0x70; y"}); err != nil ||
		r != want {
		t.Errorf("%+v, %v", r, err)
	}
	for _, s := range []string{"", "4,1;x", "a,1,2,-;x", "no semicolon"} {
		if r, err := parseRecord(s); err == nil {
			t.Errorf("%q: %+v", s, r)
		}
	}
}

func TestSplats(t *testing.T) {
	for text, bad := range map[string]bool{
		"WARNING: net/core/dev.h:398 at f":                           true,
		"BUG: unable to handle page fault for address: 0":            true,
		"Oops: Oops: 0000 [#1] SMP NOPTI":                            true,
		"gve 0000:00:01.0: AQ commands timed out, need to reset AQ":  true,
		"gve 0000:00:01.0 eth0: Timeout on tx queue, 3":              true,
		"gve 0000:00:01.0: Reset failed! !!! DISABLING ALL QUEUES !": true,
		"gve 0000:00:01.0 eth0: Device link is up.":                  false,
		"clocksource: Watchdog  hpet interval: 141840ns":             false,
	} {
		if got := len(Splats([]Record{{Text: text}})) == 1; got != bad {
			t.Errorf("%q: %t", text, got)
		}
	}
}
