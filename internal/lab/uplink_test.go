package lab_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/uplink"
)

// second gives the first NIC of each guest a MAC and addresses that no port of another lab with n ports has by default.
func second(d lab.Description, n int) lab.Description {
	for i := range d.Guests {
		nic := &d.Guests[i].NICs[0]
		nic.MAC, nic.Addr4, nic.Addr6 = lab.MAC(n+i), lab.Addr4(n+i), lab.Addr6(n+i)
	}
	return d
}

// Invariant: uplink: Joined labs are one network.
func TestLabsJoinedByUplinks(t *testing.T) {
	testkit.LeavesNothing(t)
	x, y := testkit.Loopback()
	a, b := netip.AddrPortFrom(x, 4789), netip.AddrPortFrom(y, 4789)
	path := t.TempDir() + "/up"
	for name, c := range map[string][2]uplink.Config{
		"vxlan": {{VXLAN: &uplink.VXLAN{Local: a, Remote: b, VNI: 42}},
			{VXLAN: &uplink.VXLAN{Local: b, Remote: a, VNI: 42}}},
		"unix": {{Stream: &uplink.Stream{Listen: path}}, {Stream: &uplink.Stream{Connect: path}}},
		"tcp": {{Stream: &uplink.Stream{Listen: fmt.Sprintf("%s:4788", a.Addr())}},
			{Stream: &uplink.Stream{Connect: fmt.Sprintf("%s:4788", a.Addr())}}},
	} {
		t.Run(name, func(t *testing.T) {
			var guests [2]*labtest.Guest
			for i, up := range c {
				up.Name = fmt.Sprint("up", i)
				d := lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0)
				if i == 1 {
					d = second(d, 1)
				}
				w := open(t, d, lab.Options{Log: labtest.Log(t), Services: []lab.Service{
					lab.Uplink(uplink.Options{Config: up})}})
				guests[i] = attachAs(t, w.Port(0), net.HardwareAddr(w.Port(0).MAC[:]).String())
				defer guests[i].Close()
			}
			testkit.OK(t, guests[0].Exchange(t.Context(), guests[1], 3_000_000))
		})
	}
}

// The lab's storm bound (Options.Storm) applies to frames that an uplink receives.
func TestUplinksHaveTheLabsStormBound(t *testing.T) {
	testkit.LeavesNothing(t)
	x, y := testkit.Loopback()
	a, b := netip.AddrPortFrom(x, 4790), netip.AddrPortFrom(y, 4790)
	w := open(t, lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{Log: labtest.Log(t), Storm: 1,
		Services: []lab.Service{lab.Uplink(uplink.Options{Config: uplink.Config{Name: "up",
			VXLAN: &uplink.VXLAN{Local: a, Remote: b, VNI: 1}}})}})
	peer := testkit.Must(net.DialUDP("udp4", net.UDPAddrFromAddrPort(b), net.UDPAddrFromAddrPort(a)))(t)
	defer peer.Close()
	frame := []byte("\x08\x00\x00\x00\x00\x00\x01\x00\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x09\x88\xb6")
	for range 64 { // 32 are admitted at once
		testkit.Must(peer.Write(frame))(t)
	}
	testkit.Eventually(t, "some are dropped", func() bool {
		links := w.Switch().Links()
		return links[len(links)-1].Counters().Drops[wire.DropStorm] > 0
	})
}
