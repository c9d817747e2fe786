package servelab

import (
	"net"
	"testing"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/machines"
	"vnic.dev/vnic/lab/machines/machinetest"
	"vnic.dev/vnic/stack/gateway"
)

// A guest has two virtio NICs, of which the second is for XDP. On the first one the kernel's driver refuses a native
// program, and says why. On the second one it takes it, and all that a stream brings comes through the program.
//
// Invariant: virtio: A NIC takes a native XDP program only if all packets come through it.
func TestNativeXDP(t *testing.T) {
	if testing.Short() {
		t.Skip("boots QEMU")
	}
	im := machinetest.Images(t, []string{lab.Virtio}, guestimages.Options{Modules: stockModules,
		Program: machinetest.Program(t, "vnic.dev/vnic/acceptance/internal/servelab/guest")})
	server := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer server.Close()
	go serveStreams(server)
	_, port, _ := net.SplitHostPort(server.Addr().String())

	d := lab.Description{Guests: []lab.Guest{{Name: "xdp", NICs: []lab.NIC{{Model: lab.Virtio},
		{Model: lab.Virtio, XDP: true}}}}}
	l := testkit.Must(lab.Open(d, lab.Options{Farewell: machines.Farewell, Services: []lab.Service{
		lab.Gateway(gateway.Options{NAT: true, Policy: gateway.Policy{HostPorts: gateway.AllPorts}})}}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	g := machinetest.Boot(t, im, l.Machine(0), machines.Config{Name: "xdp", RAMSize: 256 << 20,
		Agent: agent.Config{Modules: stockModules}})
	call := func(op string, a args, out any) error { return g.Agent().Call(t.Context(), op, a, out) }

	testkit.ErrorSays(t, call("stock.xdp", args{Interface: "eth0"}, nil), "operation not supported",
		"Can't set XDP while host is implementing GRO_HW/CSUM")

	p := l.Port(1)
	testkit.OK(t, call("stock.address", args{Interface: "eth1", Addr: p.Addr4.String()}, nil))
	testkit.OK(t, call("stock.xdp", args{Interface: "eth1"}, nil))
	gw, _ := lab.GatewayAddrs()
	to := net.JoinHostPort(gw.Addr().String(), port)
	before, _ := p.NIC().PortCounters()
	testkit.OK(t, call("stock.stream", args{Addr: to, Bytes: short}, nil))
	after, _ := p.NIC().PortCounters()
	var got args
	testkit.OK(t, call("stock.passed", args{}, &got))
	if n := after.Rx.Packets - before.Rx.Packets; got.Bytes < n || n < short/1500 {
		t.Errorf("the program has seen %d packets, of %d of a stream of %d bytes", got.Bytes, n, short)
	}
}
