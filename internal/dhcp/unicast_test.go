package dhcp

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// An answer may come to the assigned address, or as a broadcast.
func TestAnswerToTheAddressThatIsGivenIsHeard(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine, and the namespace with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "c"}, PeerName: "s"}
	if err := netlink.LinkAdd(v); err != nil {
		t.Skipf("no veth: %v", err)
	}
	for _, name := range []string{"c", "s"} {
		testkit.OK(t, netlink.LinkSetUp(testkit.Must(netlink.LinkByName(name))(t)))
	}
	hw := testkit.Must(netlink.LinkByName("c"))(t).Attrs().HardwareAddr
	for _, to := range []net.IP{net.IPv4(10, 1, 2, 3), net.IPv4bcast} {
		pc := testkit.Must(nclient4.NewRawUDPConn("s", dhcpv4.ServerPort))(t)
		done := serve(t, answersTo{pc, &net.UDPAddr{IP: to, Port: dhcpv4.ClientPort}}, 2,
			func(i int, m *dhcpv4.DHCPv4) [][]byte { return [][]byte{answer(t, i, m)} })
		l, err := Ask(t.Context(), "c", hw)
		if err != nil || l.Addr != netip.MustParsePrefix("10.1.2.3/24") {
			t.Errorf("to %v: %+v, %v", to, l, err)
			_ = pc.Close()
		}
		<-done
		testkit.OK(t, pc.Close())
	}
	pc := testkit.Must(nclient4.NewRawUDPConn("s", dhcpv4.ServerPort))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := serve(t, pc, 1, func(int, *dhcpv4.DHCPv4) [][]byte { cancel(); return nil })
	testkit.ErrorIs(t, testkit.Err(Ask(ctx, "c", hw)), context.Canceled)
	<-done
	testkit.OK(t, pc.Close())
}

type answersTo struct {
	net.PacketConn
	addr *net.UDPAddr
}

func (a answersTo) WriteTo(b []byte, _ net.Addr) (int, error) { return a.PacketConn.WriteTo(b, a.addr) }
