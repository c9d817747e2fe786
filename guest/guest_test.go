package guest

import (
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/testkit"
)

// TestMain skips the package's examples, which need a guest.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.skip", strings.Trim(flag.Lookup("test.skip").Value.String()+"|^Example", "|")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestOutsideOfAGuestItSaysSo(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing":    {},
		"no address": {"VNIC_DEVICE": "eth0", "VNIC_ADDR": "10.0.0.1"},
		"no index":   {"VNIC_DEVICE": "eth0", "VNIC_ADDR": "10.0.0.1/24", "VNIC_INDEX": "x"},
	} {
		for _, k := range []string{"VNIC_DEVICE", "VNIC_ADDR", "VNIC_INDEX", "VNIC_GUESTS"} {
			t.Setenv(k, env[k])
		}
		testkit.ErrorIs(t, testkit.Err(Open(t.Context())), ErrNoGuest, "%s", name)
	}
}

func TestDevicesHaveTheLabsNames(t *testing.T) {
	t.Setenv("VNIC_DEVICES", "nic0=eth0,10.118.110.101/24,fd76:6e69::65/64 b=0000:13:00.0,10.118.111.101/24")
	names := testkit.Must(Devices())(t)
	testkit.Equal(t, "names", strings.Join(names, " "), "nic0 b")
	list := testkit.Must(devices())(t)
	testkit.Equal(t, "the second", list[1], named{"b", "0000:13:00.0", netip.MustParsePrefix("10.118.111.101/24"), ""})
	testkit.ErrorSays(t, testkit.Err(OpenDevice(t.Context(), "c")), "no device c: the guest has nic0, b")
	t.Setenv("VNIC_DEVICE", "")
	for _, bad := range []string{"", "nic0", "nic0=eth0", "nic0=eth0,10.0.0.1", "nic0=eth0,x"} {
		t.Setenv("VNIC_DEVICES", bad)
		testkit.ErrorIs(t, testkit.Err(Devices()), ErrNoGuest, "%q", bad)
		testkit.ErrorIs(t, testkit.Err(OpenDevice(t.Context(), "nic0")), ErrNoGuest, "%q", bad)
	}
}

func TestPeersAreWhereTheLabHasThem(t *testing.T) {
	t.Setenv("VNIC_DEVICES", "nic0=eth0,192.0.2.1/24 b=0000:13:00.0,10.118.111.101/24")
	t.Setenv("VNIC_PEERS", "nic0=192.0.2.1,192.0.2.2,- b=10.118.111.101,-,10.118.111.103")
	for i, n := range testkit.Must(devices())(t) {
		d := &Device{Addr: n.addr.Addr(), peers: testkit.Must(parsePeers(n.peers))(t)}
		var got []string
		for guest := range 4 {
			got = append(got, d.AddrOf(guest).String())
		}
		testkit.Equal(t, "addresses", strings.Join(got, " "), []string{"192.0.2.1 192.0.2.2 invalid IP invalid IP",
			"10.118.111.101 invalid IP 10.118.111.103 invalid IP"}[i])
		testkit.ErrorSays(t, testkit.Err(d.DialGuest(t.Context(), 3, 1)), "guest3: it has no device on this rail")
		testkit.Equal(t, "before the first", d.AddrOf(-1), netip.Addr{})
	}
	t.Setenv("VNIC_DEVICE", "eth0")
	t.Setenv("VNIC_ADDR", "192.0.2.1/24")
	testkit.Equal(t, "of the first", testkit.Must(first())(t).peers, "192.0.2.1,192.0.2.2,-")
	t.Setenv("VNIC_PEERS", "nic0=192.0.2.1,x")
	testkit.ErrorIs(t, testkit.Err(OpenDevice(t.Context(), "nic0")), ErrNoGuest)
	testkit.ErrorIs(t, testkit.Err(Open(t.Context())), ErrNoGuest)
}

func TestDeviceOfAnImageIsNIC0(t *testing.T) {
	t.Setenv("VNIC_DEVICES", "")
	t.Setenv("VNIC_DEVICE", "0000:00:05.0")
	t.Setenv("VNIC_ADDR", "10.118.110.102/24")
	testkit.Equal(t, "names", strings.Join(testkit.Must(Devices())(t), " "), "nic0")
	list := testkit.Must(devices())(t)
	testkit.Equal(t, "the only one", list[0], named{"nic0", "0000:00:05.0", netip.MustParsePrefix("10.118.110.102/24"), ""})
	for _, bad := range []string{"", "10.118.110.102"} {
		t.Setenv("VNIC_ADDR", bad)
		testkit.ErrorIs(t, testkit.Err(Devices()), ErrNoGuest, "%q", bad)
		testkit.ErrorIs(t, testkit.Err(OpenDevice(t.Context(), "nic0")), ErrNoGuest, "%q", bad)
	}
}

type device struct {
	devmem.Device
	rss int
}

func (d *device) SetRSS(n int) error { d.rss = n; return nil }

func TestLastQueueIsTheOneToBind(t *testing.T) {
	for _, shared := range []bool{false, true} {
		under := &device{}
		d := &Device{}
		err := d.take(&devmemtool.Device{Device: under, Queues: 4, Shared: shared,
			GPUs: []devmemtool.GPU{{ID: 3, Size: 10000}}},
			netip.MustParseAddr("10.118.110.101"))
		if err != nil || d.Queue != 3 || d.GPU != 3 || d.Size != 8192 || (under.rss == 3) != shared {
			t.Errorf("%+v, %v", d, err)
		}
		testkit.Equal(t, "address of guest 2", d.AddrOf(2), netip.MustParseAddr("10.118.110.103"))
	}
	d := &Device{Addr: netip.MustParseAddr("fd76:6e69::65")}
	testkit.Equal(t, "address of guest 1", d.AddrOf(1), netip.MustParseAddr("fd76:6e69::66"))
	for _, bad := range []devmemtool.Device{{Queues: 2}, {Queues: 1, GPUs: make([]devmemtool.GPU, 1)}} {
		if err := d.take(&bad, d.Addr); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}
