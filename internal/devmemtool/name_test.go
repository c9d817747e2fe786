package devmemtool

import (
	"context"
	"net"
	"net/netip"
	"os"
	"regexp"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// lookup prefers the address of a guest's devmem programs.
func TestNamesArePeers(t *testing.T) {
	known := map[string][]netip.Addr{
		"guest0":        {netip.MustParseAddr("10.0.0.1")},
		"guest0-devmem": {netip.MustParseAddr("fd00::101"), netip.MustParseAddr("10.0.0.101")},
		"guest1":        {netip.MustParseAddr("10.0.0.2")},
		"six":           {netip.MustParseAddr("fd00::9")},
		"guest07":       {netip.MustParseAddr("10.0.0.7")},
		"guest7-devmem": {netip.MustParseAddr("10.0.0.107")},
	}
	r := resolve(func(_ context.Context, _, name string) ([]netip.Addr, error) {
		if list, ok := known[name]; ok {
			return list, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	})
	for name, want := range map[string]string{"guest0": "10.0.0.101", "guest0-devmem": "10.0.0.101", "guest1": "10.0.0.2",
		"six": "fd00::9", "guest07": "10.0.0.7"} {
		testkit.Equal(t, name, testkit.Must(r.lookup(name))(t).String(), want)
	}
	testkit.ErrorSays(t, testkit.Err(r.lookup("guest9")), "guest9 is neither an address nor a name of /etc/hosts")
}

func TestNamesAreThoseOfHosts(t *testing.T) {
	testkit.ErrorSays(t, testkit.Err(hosts.lookup("vnic-test.invalid")), "neither an address nor a name of /etc/hosts")
	text, _ := os.ReadFile("/etc/hosts")
	if !regexp.MustCompile(`(?m)^127\.0\.0\.1\s+localhost\s*$`).Match(text) {
		testkit.ErrorSays(t, testkit.Err(hosts.lookup("vnic-test")), "neither an address nor a name of /etc/hosts")
		return
	}
	testkit.Equal(t, "localhost", testkit.Must(hosts.lookup("localhost"))(t).String(), "127.0.0.1")
}
