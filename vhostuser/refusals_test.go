package vhostuser

import (
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestUnacceptedOffer(t *testing.T) {
	h, _, l := serving(t)
	offered := func(when, want string) {
		t.Helper()
		if got := h.back.Unaccepted(); got != want {
			t.Errorf("%s: %q, not %q", when, got, want)
		}
	}
	offered("before the end of a connection", "")
	ask := func(l *link) {
		t.Helper()
		must(t, l.Send(Header{GetFeatures, Version, 0}, nil, nil))
		_, _, err := l.Receive()
		must(t, err)
	}
	ask(l)
	must(t, l.HangUp())
	offered("asked", fmt.Sprintf("virtqueues: 4; features: %v", Features{testFeatures | FeatureProtocol, nil}))
	must(t, h.connect().HangUp())
	offered("nothing was asked", "")
	l = h.connect()
	ask(l)
	l.negotiate(t, allProtocol)
	must(t, l.HangUp())
	offered("accepted", "")
	l = h.connect()
	ask(l)
	must(t, l.Send(Header{99, Version, 0}, nil, nil))
	if err := l.Wait(); err == nil {
		t.Error("a request that is none")
	}
	offered("ended for an error", "")
	l = h.connect() // a reset after SET_FEATURES does not refuse the offer
	l.negotiate(t, allProtocol)
	must(t, l.ResetDevice())
	must(t, l.HangUp())
	offered("accepted, and reset", "")
}

func TestUnsharedMemoryIsNamedOnce(t *testing.T) {
	h, g, l := serving(t)
	l.negotiate(t, allProtocol)
	lines := func(want int) {
		t.Helper()
		for i := range 4 {
			must(t, l.SetEnable(i, true))
			_ = l.SetupVring(g.vring(i))
		}
		testkit.Equal(t, "lines", strings.Count(h.Logs.String(), "is the guest's memory shared?"), want)
	}
	lines(1)
	lines(1)
	must(t, l.AddMemory(memfd(t, 1<<20), 1<<30, userBase+1<<30, 1<<20, 0))
	lines(2)
	must(t, l.HangUp())
	if s := h.Logs.String(); !strings.Contains(s, "more vhost-user requests were refused than logged") {
		t.Error(s)
	}
	h.Take()
}
