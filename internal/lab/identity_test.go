package lab_test

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/gateway"
)

// attachAs connects a guest whose driver uses the given MAC to a port.
func attachAs(t *testing.T, p *lab.Port, mac string) *labtest.Guest {
	t.Helper()
	client, server := testkit.SocketPair(t)
	p.Connected(server)
	return testkit.Must(labtest.New(client, mac, []netip.Prefix{p.Addr4, p.Addr6}))(t)
}

type notes struct {
	mu  sync.Mutex
	all []string
}

func (n *notes) note(port, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, port+": "+text)
}

func (n *notes) has(parts ...string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.all {
		ok := true
		for _, p := range parts {
			ok = ok && strings.Contains(s, p)
		}
		if ok {
			return true
		}
	}
	return false
}

// refuses makes a guest dial, waits until its port has counted a drop for reason r, and closes the guest.
func refuses(t *testing.T, p *lab.Port, g *labtest.Guest, to netip.Addr, r wire.DropReason) {
	t.Helper()
	ctx := t.Context()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := g.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(to, 9)); err == nil {
			_ = c.Close()
		}
	}()
	testkit.Eventually(t, "a frame is refused", func() bool { return p.NIC().Link().Counters().Drops[r] > 0 })
	testkit.OK(t, g.Close())
	<-done
}

// TestPortsSendFromTheirOwnMAC: a port sends from its NIC's MAC, or from an allowed or learned MAC that is
// neither another port's nor the gateway's.
func TestPortsSendFromTheirOwnMAC(t *testing.T) {
	testkit.LeavesNothing(t)
	const stranger = "02:aa:bb:cc:dd:01"
	gw := []lab.Service{lab.Gateway(gateway.Options{})}
	for name, c := range map[string]struct {
		who  *wire.Identity
		mac  string
		pass bool
		text string
	}{
		"own":          {mac: "02:76:6e:69:00:02", pass: true},
		"a stranger's": {mac: stranger, text: "--allow-mac " + stranger},
		"allowed": {who: &wire.Identity{Also: []wire.MAC{{2, 0xaa, 0xbb, 0xcc, 0xdd, 1}}}, mac: stranger,
			pass: true},
		"any":                    {who: &wire.Identity{Any: true}, mac: stranger, pass: true},
		"learned":                {who: &wire.Identity{Learn: true}, mac: stranger, pass: true},
		"another port's":         {who: &wire.Identity{Any: true}, mac: "02:76:6e:69:00:01", text: "address of port0"},
		"learned, another's":     {who: &wire.Identity{Learn: true}, mac: "02:76:6e:69:00:01", text: "address of port0"},
		"the gateway's":          {who: &wire.Identity{Any: true}, mac: "02:76:6e:69:00:fe", text: "address of gateway"},
		"learned, the gateway's": {who: &wire.Identity{Learn: true}, mac: "02:76:6e:69:00:fe", text: "address of gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			var seen notes
			w := open(t, lab.Uniform(2, lab.NIC{Model: lab.Virtio, Link: wire.LinkOptions{Identity: c.who}}, 0),
				lab.Options{Services: gw, Note: seen.note})
			a, b := attach(t, w.Port(0)), attachAs(t, w.Port(1), c.mac)
			defer a.Close()
			if c.pass {
				testkit.OK(t, b.Exchange(t.Context(), a, 10_000))
				testkit.OK(t, b.Close())
				testkit.Equal(t, "refusals", len(seen.all), 0)
				return
			}
			refuses(t, w.Port(1), b, w.Port(0).Addr4.Addr(), wire.DropMAC)
			if !seen.has("port1: mac-not-yours", c.mac, c.text) {
				t.Errorf("told: %q", seen.all)
			}
		})
	}
}

// TestTheNextGuestBeginsAnew: when a guest's connection ends, its port forgets the MAC that it has learned,
// so that the next guest may use another MAC and the same IP addresses.
func TestTheNextGuestBeginsAnew(t *testing.T) {
	testkit.LeavesNothing(t)
	w := open(t, lab.Uniform(2, lab.NIC{Model: lab.Virtio, Link: wire.LinkOptions{Identity: &wire.Identity{Learn: true}}},
		0), lab.Options{})
	a := attach(t, w.Port(0))
	defer a.Close()
	for _, mac := range []string{"02:aa:bb:cc:dd:01", "02:aa:bb:cc:dd:02"} {
		b := attachAs(t, w.Port(1), mac)
		testkit.OK(t, b.Exchange(t.Context(), a, 10_000))
		testkit.OK(t, b.Close())
	}
}

// TestAddressesOfOthersAreTold: if a guest sends from the IP address of another port, a note names the other
// port.
func TestAddressesOfOthersAreTold(t *testing.T) {
	testkit.LeavesNothing(t)
	var seen notes
	w := open(t, lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 0),
		lab.Options{Services: []lab.Service{lab.Gateway(gateway.Options{})}, Note: seen.note})
	client, server := testkit.SocketPair(t)
	w.Port(1).Connected(server)
	b := testkit.Must(labtest.New(client, "02:76:6e:69:00:02", []netip.Prefix{w.Port(0).Addr4}))(t)
	gw, _ := lab.GatewayAddrs()
	refuses(t, w.Port(1), b, gw.Addr(), wire.DropAddress)
	if !seen.has("port1: address-not-yours", "10.118.110.1", "address of port0") {
		t.Errorf("told: %q", seen.all)
	}
}

func TestParseAllowedMACs(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = "02:00:00:00:01:" + string("0123456789abcdef"[i/16]) + string("0123456789abcdef"[i%16])
	}
	for s, want := range map[string]string{
		"any":                                 "any",
		"02:aa:bb:cc:dd:01":                   "02:aa:bb:cc:dd:01",
		"02-AA-BB-CC-DD-01,02aa.bbcc.dd02":    "02:aa:bb:cc:dd:01,02:aa:bb:cc:dd:02",
		strings.Join(many[:64], ","):          strings.Join(many[:64], ","),
		strings.Join(many, ","):               "! more than 64",
		"":                                    `! "" is no MAC`,
		"all":                                 `! "all" is no MAC`,
		"any,02:aa:bb:cc:dd:01":               `! "any" is no MAC`,
		"02:aa:bb:cc:dd:01,":                  `! "" is no MAC`,
		"02:aa:bb:cc:dd:01, 02:aa:bb:cc:dd:2": `! " 02:aa:bb:cc:dd:2" is no MAC`,
		"02:aa:bb:cc:dd:01:02:03":             `! "02:aa:bb:cc:dd:01:02:03" is no MAC`,
		"ff:ff:ff:ff:ff:ff":                   "! no frame may come from ff:",
		"00:00:00:00:00:00":                   "! no frame may come from 00:",
		"02:76:6e:69:63:01":                   "! no frame may come from 02:76:6e:69:63:01",
		"02:76:6e:69:00:fe":                   "! 02:76:6e:69:00:fe is the gateway's",
		"02:aa:bb:cc:dd:01,02:AA:bb:cc:dd:01": "! 02:AA:bb:cc:dd:01 twice",
	} {
		a, err := lab.ParseAllowedMACs(s)
		got := a.String()
		if err != nil {
			got = "! " + err.Error()
		}
		if !strings.HasPrefix(got, want) || err == nil && got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}
