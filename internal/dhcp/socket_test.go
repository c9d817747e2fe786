package dhcp

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"

	"vnic.dev/vnic/internal/dhcp4"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// packets is a packet socket for the reference library: it keeps the sent IP packet, and returns it
// once to a reader.
type packets struct {
	net.PacketConn
	b []byte
}

func (p *packets) WriteTo(b []byte, _ net.Addr) (int, error) {
	p.b = bytes.Clone(b)
	return len(b), nil
}

func (p *packets) ReadFrom(b []byte) (int, net.Addr, error) {
	if p.b == nil {
		return 0, nil, net.ErrClosed
	}
	n := copy(b, p.b)
	p.b = nil
	return n, nil, nil
}

// referenceFrame makes a frame with a datagram by the reference library.
func referenceFrame(t testkit.T, from int, to *net.UDPAddr, payload []byte) []byte {
	var p packets
	pc := nclient4.NewBroadcastUDPConn(&p, &net.UDPAddr{IP: net.IPv4zero, Port: from})
	testkit.OK(t, testkit.Err(pc.WriteTo(payload, to)))
	return append(append(append([]byte("\xff\xff\xff\xff\xff\xff"), mac...), 8, 0), p.b...)
}

// Messages and their frames equal the reference library's, byte for byte.
func TestMessagesAreThoseOfTheReference(t *testing.T) {
	c := &client{mac: [6]byte(mac), xid: 0x01020304}
	like := func(m *dhcp4.Message, r *dhcpv4.DHCPv4) {
		t.Helper()
		binary.BigEndian.PutUint32(r.TransactionID[:], c.xid)
		if b := m.Encode(); !bytes.Equal(b, r.ToBytes()) {
			t.Errorf("%x\nwant %x", b, r.ToBytes())
		}
	}
	mods := []dhcpv4.Modifier{dhcpv4.WithBroadcast(true), dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(maxMessage)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionHostName, dhcpv4.OptionInterfaceMTU)}
	discover := testkit.Must(dhcpv4.NewDiscovery(mac, mods...))(t)
	like(c.message(dhcp4.Discover), discover)
	offer := testkit.Must(dhcpv4.NewReplyFromRequest(discover, dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 3)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 1, 2, 254)))))(t)
	m := c.request(testkit.Must(dhcp4.Decode(offer.ToBytes()))(t))
	like(m, testkit.Must(dhcpv4.NewRequestFromOffer(offer, mods...))(t))

	for _, payload := range [][]byte{m.Encode(), []byte("odd"), {}} {
		got := frame(c.mac, payload)
		want := referenceFrame(t, clientPort, &net.UDPAddr{IP: net.IPv4bcast, Port: serverPort}, payload)
		if !bytes.Equal(got, want) {
			t.Errorf("%x\nwant %x", got, want)
		}
	}
}

func toClient(t testkit.T, payload string) []byte {
	return referenceFrame(t, serverPort, &net.UDPAddr{IP: net.IPv4(10, 1, 2, 3), Port: clientPort}, []byte(payload))
}

func TestDatagramsAreFound(t *testing.T) {
	const ip, udp = splitter.EthLen, splitter.EthLen + 20
	set := func(b []byte, i int, v byte) []byte { b[i] = v; return b }
	options := toClient(t, "abc")
	options = append(options[:udp:udp], append([]byte{1, 1, 1, 1}, options[udp:]...)...)
	options[ip], options[ip+3] = 0x46, options[ip+3]+4
	for _, c := range []struct {
		name  string
		frame []byte
		want  string // the expected payload; "": the frame is ignored
	}{
		{"one", toClient(t, "abc"), "abc"},
		{"padded", append(toClient(t, "abc"), make([]byte, 40)...), "abc"},
		{"behind IP options", options, "abc"},
		{"of no UDP checksum that holds", set(toClient(t, "abc"), udp+6, 1), "abc"}, // a NIC must complete this checksum
		{"to another port", set(toClient(t, "abc"), udp+3, 69), ""},
		{"TCP", set(toClient(t, "abc"), ip+9, 6), ""},
		{"a fragment", set(toClient(t, "abc"), ip+6, 0x20), ""},
		{"IPv6", set(toClient(t, "abc"), ip, 0x65), ""},
		{"ARP", set(toClient(t, "abc"), 13, 6), ""},
		{"cut", toClient(t, "abc")[:udp+10], ""},
		{"no UDP header", set(toClient(t, "abc")[:udp+4], ip+3, 24), ""},
		{"nothing", nil, ""},
	} {
		testkit.Equal(t, c.name, string(datagram(c.frame)), c.want)
	}
}

// For any frame that datagram accepts, the reference library returns the same payload.
func FuzzDatagram(f *testing.F) {
	f.Add(toClient(f, "abc"))
	f.Add(append(toClient(f, "abc"), 0, 0))
	f.Add(toClient(f, "abc")[:40])
	f.Fuzz(func(t *testing.T, b []byte) {
		got := datagram(b)
		if got == nil || binary.BigEndian.Uint16(b[12:]) != 0x0800 { // the reference does not see link headers and tags
			return
		}
		pc := nclient4.NewBroadcastUDPConn(&packets{b: b[splitter.EthLen:]}, &net.UDPAddr{Port: clientPort})
		want := make([]byte, len(b))
		n, _, err := pc.ReadFrom(want)
		if err != nil || !bytes.Equal(got, want[:n]) {
			t.Fatalf("%x, want %x, %v", got, want[:n], err)
		}
	})
}
