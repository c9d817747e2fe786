package serve

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
)

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	return testkit.Must(net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path}))(t)
}

// A QEMU that declines the offer again and again causes one line, besides the two about its first connection.
//
// Invariant: vnic serve: A QEMU that declines the offer again and again is reported once, with the
// offer.
func TestQEMUThatDeclinesTheOfferIsNamedOnce(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/a"
	o := Options{Paths: []string{path}}
	o.NIC.QueuePairs = 1
	s := serve(t, o)
	pid := os.Getpid()
	for range 20 {
		f := vhostuser.NewFrontend(dial(t, path))
		testkit.OK(t, f.Send(vhostuser.Header{Request: vhostuser.GetFeatures, Flags: vhostuser.Version}, nil, nil))
		_, _, err := f.Receive()
		testkit.OK(t, err)
		testkit.OK(t, f.Close())
	}
	testkit.OK(t, s.guest(0).Close()) // now all connections above have ended
	var got []string
	for !strings.HasSuffix(strings.Join(got, "\n"), "hung up") || len(got) < 5 {
		got = append(got, <-s.notes)
	}
	testkit.Equal(t, "notes", len(got), 5)
	prefix := fmt.Sprintf("port0: process %d ", pid)
	for i, want := range []string{"connected", "hung up", "hangs up behind GET_FEATURES again and again: it wants what " +
		"this vnic does not offer, as more queues; its QEMU says what. Offered are queue pairs: 1; features: CSUM|",
		"connected", "hung up"} {
		if !strings.HasPrefix(got[i], prefix+want) {
			t.Errorf("note %d is %q, not %q", i, got[i], prefix+want)
		}
	}
	if !strings.HasSuffix(got[2], "Start vnic with the flags that it had (--queues, --xdp, --max-mtu), or that QEMU anew "+
		"with the flags above") || strings.Contains(got[2], "|MQ") {
		t.Error(got[2])
	}
}

// A second QEMU that retries is reported once while the port serves the same QEMU.
func TestSecondQEMUIsNamedOnce(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/a"
	s := serve(t, Options{Paths: []string{path}, takeover: limits.Takeover.Here() / 100})
	for range 2 {
		first := s.guest(0)
		s.noted("connected")
		for range 5 {
			second := dial(t, path)
			testkit.Must(second.Write([]byte{1}))(t)
			_, _ = second.Read(make([]byte, 1))
			testkit.OK(t, second.Close())
		}
		testkit.OK(t, first.Close())
		var got []string
		for len(got) == 0 || !strings.HasSuffix(got[len(got)-1], "hung up") {
			got = append(got, <-s.notes)
		}
		if len(got) != 2 || !strings.Contains(got[0], " is refused: process ") {
			t.Errorf("notes %q", got)
		}
	}
}
