package servelab

import (
	"net"
	"slices"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/gateway"
)

// The kernel's driver refuses a native XDP program on the first of two virtio NICs, and accepts it on the second, which
// has the option XDP, and, with the settings of stock.forxdp, on a gVNIC.
//
// Invariant: virtio: A NIC takes a native XDP program only if all packets come through it.
// Invariant: nic/gve: Unless MaxQueues is set, a driver may ask for twice the queues that it starts
// with, up to 16.
func TestNativeXDP(t *testing.T) {
	testkit.Boots(t)
	program := machinetest.Program(t, "vnic.dev/vnic/test/internal/servelab/guest")
	t.Run(lab.Virtio, func(t *testing.T) {
		g := xdpGuest(t, program, lab.NIC{Model: lab.Virtio}, lab.NIC{Model: lab.Virtio,
			NICOptions: lab.NICOptions{XDP: true}})
		testkit.ErrorSays(t, g.call("stock.xdp", args{Interface: "eth0"}, nil), "operation not supported",
			"Can't set XDP while host is implementing GRO_HW/CSUM")
		testkit.OK(t, g.call("stock.xdp", args{Interface: "eth1"}, nil))
		g.passes(t, "eth1", g.lab.Port(1))
	})
	t.Run(lab.GVE, func(t *testing.T) {
		g := xdpGuest(t, program, lab.NIC{Model: lab.GVE})
		testkit.OK(t, g.call("stock.forxdp", args{Interface: "eth0"}, nil))
		testkit.OK(t, g.call("stock.xdp", args{Interface: "eth0"}, nil))
		g.passes(t, "eth0", g.lab.Port(0))
	})
}

type attacher struct {
	call func(op string, a args, out any) error
	lab  *lab.Lab
	to   string // address, by the gateway, of the host's server of streams
}

// xdpGuest boots a guest of a lab with these NICs and a gateway, by which the guest reaches a server of streams.
// The first NIC's model says which modules the guest loads.
func xdpGuest(t *testing.T, program string, nics ...lab.NIC) *attacher {
	t.Helper()
	modules := append(stockModules[:len(stockModules):len(stockModules)], machine.SoftwareFor(nics[0].Model).Modules...)
	slices.Sort(modules)
	modules = slices.Compact(modules)
	im := machinetest.Images(t, []string{nics[0].Model}, guestimages.Options{Modules: modules, Program: program})
	server := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = server.Close() })
	go serveStreams(server)
	_, port, _ := net.SplitHostPort(server.Addr().String())
	d := lab.Description{Guests: []lab.Guest{{Name: "xdp", NICs: nics}}}
	l := testkit.Must(lab.Open(d, lab.Options{Farewell: time.Duration(limits.GuestEnd), Services: []lab.Service{
		lab.Gateway(gateway.Options{NAT: true, Policy: gateway.Policy{HostPorts: gateway.AllPorts}})}}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	g := machinetest.Boot(t, im, l.Machine(0), machine.Config{Config: qemu.Config{Name: "xdp", RAMSize: 256 << 20},
		Agent: agent.Config{Modules: modules}})
	gw, _ := lab.GatewayAddrs()
	return &attacher{lab: l, to: net.JoinHostPort(gw.Addr().String(), port),
		call: func(op string, a args, out any) error { return g.Agent().Call(t.Context(), op, a, out) }}
}

// passes moves a stream, and checks that the interface's program has seen at least as many packets as the port
// received meanwhile.
func (g *attacher) passes(t *testing.T, name string, p *lab.Port) {
	t.Helper()
	testkit.OK(t, g.call("stock.address", args{Interface: name, Addr: p.Addr4.String()}, nil))
	before, _ := p.NIC().PortCounters()
	testkit.OK(t, g.call("stock.stream", args{Addr: g.to, Bytes: short}, nil))
	after, _ := p.NIC().PortCounters()
	var got args
	testkit.OK(t, g.call("stock.passed", args{}, &got))
	if n := after.Rx.Packets - before.Rx.Packets; got.Bytes < n || n < short/1500 {
		t.Errorf("the program has seen %d packets, of %d of a stream of %d bytes", got.Bytes, n, short)
	}
}
