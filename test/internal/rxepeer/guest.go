package rxepeer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

// suites are Debian suites; tools/kernel takes the generic kernel of the first suite that has one.
var suites = []string{"forky", "trixie-backports", "sid"}

// modules are the kernel modules that tools/rdma-peer.c needs beside the NIC's.
var modules = []string{"rdma_rxe", "ib_uverbs"}

// Images fetches QEMU and the generic kernel, and builds tools/rdma-peer.c and an initramfs with it. It skips the
// test unless VNIC_LONG is set, and with -short. The test's package must be in this folder or one beside it, because
// the path of the folder tools is relative.
func Images(t *testing.T) *machine.Images {
	t.Helper()
	testkit.Boots(t)
	words := strings.Fields(tool(t, "kernel", append([]string{"--generic"}, suites...)...))
	if len(words) != 2 {
		t.Fatalf("tools/kernel: %q", words)
	}
	program := filepath.Join(t.TempDir(), "rdma-peer")
	tool(t, "rdma-peer", program)
	im, err := machine.Fetch(t.Context(), assets.Options{IgnoreSystemQEMU: true, Kernel: words[0], Modules: words[1]},
		[]string{lab.Virtio}, t.Logf)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, im.Close()) })
	testkit.OK(t, im.BuildImage(t.Context(), guestimages.Options{Modules: append(im.Drivers(lab.Virtio), modules...),
		Files: map[string]string{"bin/rdma-peer": program}}))
	return im
}

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "..", "tools", name), args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tools/%s: %v", name, err)
	}
	return string(out)
}

// Boot boots a guest on each of these machines of a lab, all at the same time, and returns a Peer for each, in the same
// order. A machine must have one NIC, a virtio one. The guests end with the test.
func Boot(t *testing.T, im *machine.Images, list ...*lab.Machine) []*Peer {
	t.Helper()
	var guests []machinetest.Guest
	for _, hw := range list {
		guests = append(guests, machinetest.Guest{Machine: hw, Config: machine.Config{
			Config: qemu.Config{Name: hw.Name, RAMSize: 512 << 20, BootLimit: 3 * time.Minute, TimeLimit: 20 * time.Minute},
			Agent: agent.Config{Hostname: hw.Name,
				// Without duplicate address detection IPv6 addresses can be used at once.
				Sysctl: map[string]string{"net.ipv6.conf.default.accept_dad": "0"}}}})
	}
	var peers []*Peer
	for i, g := range machinetest.BootAll(t, im, guests...) {
		p := list[i].Ports[0]
		n := testkit.Must(guestnet.Apply(t.Context(), g.Agent(), guestnet.Config{Interfaces: []guestnet.Interface{{
			MAC: net.HardwareAddr(p.MAC[:]).String(), MTU: p.MTU, Addrs: []netip.Prefix{p.Addr4, p.Addr6}}}}))(t)
		testkit.Equal(t, "what is not ready", n.NotReady, "")
		peers = append(peers, start(t, g, n.Interfaces[0].Name))
	}
	return peers
}

// start runs rdma-peer in a guest, and returns its Peer. When the test ends, a Cleanup closes the Peer.
func start(t *testing.T, g *machine.Guest, netdev string) *Peer {
	t.Helper()
	ours, theirs := net.Pipe()
	var output agent.Tail // read when the program has ended
	output.Max = 4 << 10
	ended := make(chan error, 1)
	ctx := context.WithoutCancel(t.Context()) // t.Context ends before the Cleanup runs
	go func() {
		status, err := guestexec.Run(ctx, g.Agent(), guestexec.Command{Path: "/bin/rdma-peer",
			Args: []string{"rdma-peer", "-n", netdev}, Stdin: theirs, Stdout: theirs, Stderr: &output})
		if err == nil && status.Exit() != 0 {
			err = fmt.Errorf("rdma-peer: status %d: %s", status.Exit(), agent.Plain(string(output.Bytes())))
		}
		_ = theirs.Close()
		ended <- err
	}()
	p, err := New(ours)
	if err != nil {
		t.Fatal(errors.Join(err, <-ended))
	}
	t.Cleanup(func() {
		testkit.NoError(t, p.Close())
		testkit.NoError(t, <-ended)
	})
	p.Guest = g
	return p
}
