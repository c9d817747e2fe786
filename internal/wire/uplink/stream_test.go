package uplink

import (
	"fmt"
	"net"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: uplink: Peers that connect and hang up repeatedly cause few log lines, which count the
// omitted ones.
func TestPeersThatComeAndGoAreFewLines(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/up"
	a := newSide(t, 1, Config{Stream: &Stream{Listen: path}}, 1500)
	const peers = 500
	for i := range peers {
		c := testkit.Must(net.Dial("unix", path))(t)
		if i%2 == 0 { // an invalid length
			_, _ = c.Write([]byte{0xff, 0xff, 0xff, 0xff})
		}
		testkit.OK(t, c.Close())
	}
	before := a.log.having("peer")
	if before > peers/10 {
		t.Errorf("%d lines", before)
	}
	// This peer does not hang up before the end.
	c := testkit.Must(net.Dial("unix", path))(t)
	defer c.Close()
	f := plain(macOf(9), a.mac, "hello")
	testkit.Must(c.Write(streamOf(f)))(t)
	a.gets(f)
	if n := a.log.having("peer"); n > peers/10 {
		t.Errorf("%d lines", n)
	}
}

func TestListenerForTheNetworkIsSaid(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/up"
	for addr, want := range map[string]int{"127.0.0.1": 0, "0.0.0.0": 1, "127.9.9.9": 0, path: 0} {
		if addr != path {
			_, port := loopback()
			addr = fmt.Sprintf("%s:%d", addr, port.Port())
		}
		a := newSide(t, 1, Config{Stream: &Stream{Listen: addr}}, 1500)
		testkit.Equal(t, addr, a.log.having("WARN", "is reachable from the network", "127.0.0.1 or a file"), want)
		testkit.OK(t, a.up.Close())
	}
}
