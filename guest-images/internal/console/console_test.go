package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/dhcp"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/testkit"
)

// sysfs returns a root directory whose /sys has these network interfaces; list has "DRIVER PCI-ADDRESS" by name.
func sysfs(t *testing.T, list map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, s := range list {
		driver, place, _ := strings.Cut(s, " ")
		device, drivers := filepath.Join(root, "sys/devices", place), filepath.Join(root, "sys/drivers", driver)
		for _, dir := range []string{device, drivers, filepath.Join(root, "sys/class/net", name)} {
			testkit.OK(t, os.MkdirAll(dir, 0o755))
		}
		testkit.OK(t, errors.Join(os.Symlink(drivers, filepath.Join(device, "driver")),
			os.Symlink(device, filepath.Join(root, "sys/class/net", name, "device"))))
	}
	return root
}

// interfaces returns the names in the order of the PCI addresses, whatever the names are.
func TestInterfacesAreInTheOrderOfTheirPlaces(t *testing.T) {
	root := sysfs(t, map[string]string{"eth0": "gve 0000:00:05.0", "eth1": "gve 0000:00:03.0",
		"eth2": "e1000e 0000:00:02.0"})
	got, err := interfaces(t.Context(), root, "gve", time.Hour)
	if err != nil || !slices.Equal(got, []string{"eth1", "eth0"}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := interfaces(t.Context(), root, "virtio_net", 0); !errors.Is(err, unix.ENODEV) ||
		!strings.Contains(err.Error(), "virtio_net") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.ErrorIs(t, testkit.Err(interfaces(ctx, root, "virtio_net", time.Hour)), context.Canceled)
}

func TestLeaseBecomesNetworkAndIdentity(t *testing.T) {
	l := dhcp.Lease{Addr: netip.MustParsePrefix("10.118.110.2/24"),
		Routers: []netip.Addr{netip.MustParseAddr("10.118.110.254")}, Name: "port1", MTU: 1400}
	c := guestnet.Config{Interfaces: []guestnet.Interface{{MAC: "x"}, {MAC: "y", Leave: true}}}
	use(&c, 0, l)
	if c.Interfaces[0].Addrs[0] != l.Addr || len(c.Interfaces[1].Addrs) != 0 || c.Hosts[0].Names[0] != "port1" ||
		c.Hosts[1].Names[0] != "gateway" {
		t.Errorf("%+v", c)
	}
	testkit.Equal(t, "MTUs", fmt.Sprint(c.Interfaces[0].MTU, c.Interfaces[1].MTU), "1400 0")
	names := map[string]string{}
	for _, h := range c.Hosts {
		names[h.Names[0]] = h.Addr.String()
	}
	if names["guest0"] != "10.118.110.1" || names["guest15-devmem"] != "10.118.110.116" {
		t.Errorf("%v", names)
	}
	use(&c, 1, dhcp.Lease{Addr: netip.MustParsePrefix("10.118.110.3/24"), Routers: l.Routers, Name: "port2", MTU: 1500})
	if got := c.Interfaces[1]; got.Addrs[0].String() != "10.118.110.3/24" || got.MTU != 1500 || len(c.Gateways) != 1 ||
		c.Hosts[len(c.Hosts)-1].Names[0] != "port2" {
		t.Errorf("a second lease: %+v", c)
	}
	root := t.TempDir()
	testkit.OK(t, os.MkdirAll(filepath.Join(root, "proc/sys/net/ipv4/conf/all"), 0o755))
	testkit.OK(t, os.WriteFile(filepath.Join(root, "proc/sys/net/ipv4/conf/all/arp_ignore"), nil, 0o600))
	testkit.OK(t, apart(root))
	testkit.ErrorSays(t, apart("/no/such/root"), "no such file")
	other := guestnet.Config{Interfaces: make([]guestnet.Interface, 1)}
	use(&other, 0, dhcp.Lease{Addr: l.Addr, Name: "somebody"})
	if len(other.Hosts) != 1 {
		t.Errorf("names in a stranger's network: %+v", other.Hosts)
	}
	testkit.Equal(t, "identity", strings.Join(identity(l.Addr), " "),
		"VNIC_INDEX=1 VNIC_GUESTS=0 VNIC_ADDR=10.118.110.102/24")
	for _, stranger := range []string{"192.168.1.0/24", "192.168.1.101/24"} {
		if got := identity(netip.MustParsePrefix(stranger)); got != nil {
			t.Errorf("%s: %v", stranger, got)
		}
	}
}

func TestInterfaceThatIsLeftIsNamed(t *testing.T) {
	testkit.Equal(t, "line", left("eth1", "0000:00:05.0"), "eth1 is not the kernel's: of several virtio NICs the last "+
		"one, 0000:00:05.0, is left to devmem programs ($VNIC_DEVICE); for two interfaces give the guest three NICs")
}

func TestImageHasTheFirstWordOfItsEnvironment(t *testing.T) {
	got := environment([]string{"A=1", "VNIC_GUESTS=2", "TERM=xterm"}, []string{"VNIC_GUESTS=0", "VNIC_INDEX=1"},
		[]string{"quiet", "TERM=vt100", "x"})
	if want := []string{"A=1", "VNIC_GUESTS=2", "TERM=xterm", "VNIC_INDEX=1", "TERM=vt100"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestGuestOfAHostHasNoProgramOfItsOwn(t *testing.T) {
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	defer r.Close()
	stderr := os.Stderr
	os.Stderr = w
	status := Applet(nil)
	os.Stderr = stderr
	testkit.OK(t, w.Close())
	testkit.Equal(t, "status", status, 2)
	testkit.Equal(t, "stderr", string(testkit.Must(io.ReadAll(r))(t)), "vnic-guest: not to be started by hand\n")
}

func TestConsoleIsTheLastOne(t *testing.T) {
	root := t.TempDir()
	active := filepath.Join(root, "sys/class/tty/console/active")
	testkit.OK(t, errors.Join(os.MkdirAll(filepath.Dir(active), 0o755), os.MkdirAll(filepath.Join(root, "dev"), 0o755),
		os.WriteFile(filepath.Join(root, "dev/ttyS0"), nil, 0o600), os.WriteFile(active, []byte("tty0 ttyS0\n"),
			0o600)))
	f, err := open(root)
	if err != nil || filepath.Base(f.Name()) != "ttyS0" {
		t.Fatal(err)
	}
	_ = f.Close()
	testkit.OK(t, os.WriteFile(active, nil, 0o600))
	testkit.ErrorSays(t, testkit.Err(open(root)), "console=ttyS0")
}

// Invariant: vnic image: A guest runs without a host at its results channel.
func TestProgramsEnd(t *testing.T) {
	env := []string{"PATH=/usr/bin:/bin"}
	for script, want := range map[string]string{"echo out; exit 3": "exit status 3", "kill -9 $$": "ended by signal 9"} {
		r, w, err := os.Pipe()
		testkit.OK(t, err)
		end, _ := run(&agent.Alone{Path: "sh", Args: []string{"sh", "-c", script}, Dir: "/"}, env, w)
		_ = w.Close()
		if out, err := io.ReadAll(r); end != want || err != nil ||
			strings.Contains(script, "echo") != (string(out) == "out\n") {
			t.Errorf("%s: %s, %q, %v", script, end, out, err)
		}
		_ = r.Close()
	}
	for path, want := range map[string]int{"no-such-program": 127, "/etc/passwd": 126} {
		if end, status := run(&agent.Alone{Path: path, Args: []string{path}, Dir: "/"}, env, os.Stdout); status != want ||
			!strings.Contains(end, path) {
			t.Errorf("%s: %d: %s", path, status, end)
		}
	}
}
