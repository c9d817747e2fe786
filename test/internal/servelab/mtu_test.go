package servelab

import (
	"fmt"
	"net"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: lab: A guest may raise its MTU to the maximum of its NIC, and what it sends then arrives.
func TestMTUIsRaised(t *testing.T) {
	testkit.Boots(t)
	const most = 9000
	program := machinetest.Program(t, "vnic.dev/vnic/test/internal/servelab/guest")
	for _, model := range []string{lab.Virtio, lab.GVE} {
		t.Run(model, func(t *testing.T) {
			host := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
			defer host.Close()
			g := xdpGuest(t, program, lab.NIC{Model: model, NICOptions: lab.NICOptions{MaxMTU: most}})
			p := g.lab.Port(0)
			mtu := func(n int) error { return g.call("stock.mtu", args{MTU: n}, nil) }
			testkit.OK(t, mtu(1500)) // below the maximum
			testkit.OK(t, g.call("stock.address", args{Interface: iface, Addr: p.Addr4.String()}, nil))
			testkit.OK(t, mtu(most))
			testkit.ErrorSays(t, mtu(most+1), "invalid argument")
			gw, _ := lab.GatewayAddrs()
			_, port, _ := net.SplitHostPort(host.LocalAddr().String())
			to := net.JoinHostPort(gw.Addr().String(), port)
			const payload = most - 20 - 8 // with the IPv4 and UDP headers, one packet of most bytes
			testkit.OK(t, g.call("stock.datagram", args{Addr: to, Bytes: payload}, nil))
			testkit.OK(t, host.SetReadDeadline(time.Now().Add(patience)))
			n, _, err := host.ReadFrom(make([]byte, most))
			testkit.OK(t, err)
			testkit.Equal(t, "bytes that arrived", n, payload)
			for _, l := range g.lab.Switch().Links() {
				testkit.Equal(t, fmt.Sprint(l.Name(), ": too big"), l.Counters().Drops[wire.DropTooBig], 0)
			}
		})
	}
}
