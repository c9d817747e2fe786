package rdma

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestFaultsAreRead(t *testing.T) {
	for _, c := range []struct {
		fault string
		says  string // "": the fault is valid
		ends  bool
	}{
		{"", "", false},
		{"stale", "", false},
		{"late-ack=20ms,lose-answers=3", "", false},
		{"never-ack,kill=1s", "", true},
		{"remove-gpu=1m", "", true},
		{"bad-page=0", "", true},
		{"bad-page=255", "", true},
		{"bad-page=256", "--fault bad-page=256: never-ack, ", false},
		{"bad-page=-1", "bad-page=PAGE", false},
		{"kill", "kill=TIME", false},
		{"kill=0s", "kill=TIME", false},
		{"remove-gpu=61s", "remove-gpu=TIME", false},
		{"never-ack=1s", "never-ack", false},
		{"lose-answers=0", "lose-answers=N", false},
		{"stale,", "--fault : never-ack", false},
		{"kill=1s,bad-page=1", "one of remove-gpu, kill and bad-page", false},
	} {
		o := Options{Fault: c.fault, Size: 256 * 4096}
		f, err := o.faults()
		switch {
		case c.says != "":
			testkit.ErrorSays(t, err, c.says)
		case err != nil || f.ends() != c.ends:
			t.Errorf("%q: %+v, %v", c.fault, f, err)
		}
	}
}

// A run with memory on demand that contradicts the proof fails, and the error says how.
func TestWrongPages(t *testing.T) {
	const n = 4096
	good := func() Report {
		r := Report{Size: n, Runs: []Run{{Memory: OnDemand, Rounds: 1, Bytes: n, Verified: true,
			Requester: End{Guest: "a", P2P: true, Device: n},
			Responder: End{Guest: "b", P2P: true, Device: 1000, Host: n - 1000}, Pages: &Pages{Looked: 7}}}}
		return r
	}
	r := good()
	testkit.OK(t, r.check())
	for _, c := range []struct {
		spoil func(r *Run)
		says  string
	}{
		{func(r *Run) { r.Pages.AfterAck = 2 }, "2 pages of the GPU were written to after the NIC had acknowledged"},
		{func(r *Run) { r.Pages.Quarantined = true }, "quarantine"},
		{func(r *Run) { r.Responder.P2P, r.Responder.Device, r.Responder.Host, r.Pages.MapsP2P = false, 0, n, 3 },
			"without peer-to-peer the NIC got to know 3 pages"},
		{func(r *Run) { r.Responder.P2P = false }, "without peer-to-peer 1000 bytes lay in the GPU"},
		{func(r *Run) { r.Responder.Host++ }, "guest b: 4097 bytes of payload"},
		{func(r *Run) { r.Responder.Bounced = 1 }, "1 bytes were bounced"},
		{func(r *Run) { r.Bytes-- }, "4095 bytes of 4096"},
		{func(r *Run) { r.Error = "wrong bytes" }, "--mr odp: wrong bytes"},
	} {
		r := good()
		c.spoil(&r.Runs[0])
		err := r.check()
		testkit.ErrorIs(t, err, ErrProof)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, and not %s", err, c.says)
		}
	}
}
