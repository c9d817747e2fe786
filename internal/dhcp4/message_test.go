package dhcp4

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"pgregory.net/rapid"

	"vnic.dev/vnic/internal/testkit"
)

var equalAddrs = cmpopts.EquateComparable(netip.Addr{})

// theirs converts a message to the reference library's type.
func theirs(m *Message) *dhcpv4.DHCPv4 {
	r := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeType(m.Op), HWType: iana.HWTypeEthernet, Flags: m.Flags,
		ClientIPAddr: m.Client.AsSlice(), YourIPAddr: m.Yours.AsSlice(), GatewayIPAddr: m.Relay.AsSlice(),
		ClientHWAddr: m.MAC[:], Options: dhcpv4.Options{}}
	binary.BigEndian.PutUint32(r.TransactionID[:], m.XID)
	for code, v := range m.Options {
		r.Options[uint8(code)] = v
	}
	return r
}

// ours converts a message of the reference library. ok reports whether it is for Ethernet.
func ours(r *dhcpv4.DHCPv4) (m *Message, ok bool) {
	if r.HWType != iana.HWTypeEthernet || len(r.ClientHWAddr) != 6 {
		return nil, false
	}
	ip := func(a net.IP) netip.Addr { return netip.AddrFrom4([4]byte(a.To4())) }
	m = &Message{Op: Op(r.OpCode), XID: binary.BigEndian.Uint32(r.TransactionID[:]), Flags: r.Flags,
		Client: ip(r.ClientIPAddr), Yours: ip(r.YourIPAddr), Relay: ip(r.GatewayIPAddr), MAC: [6]byte(r.ClientHWAddr),
		Options: Options{}}
	for code, v := range r.Options {
		m.Options[Code(code)] = v
	}
	return m, true
}

// messages draws any message without option 82, which the reference library encodes out of order (RFC 3046).
var messages = rapid.Custom(func(t *rapid.T) *Message {
	address := func(what string) netip.Addr {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, what)))
	}
	code := rapid.Custom(func(t *rapid.T) Code { return Code(rapid.Uint8Range(1, 254).Draw(t, "code")) }).
		Filter(func(c Code) bool { return c != 82 })
	m := &Message{Op: Op(rapid.Byte().Draw(t, "op")), XID: rapid.Uint32().Draw(t, "xid"),
		Flags: rapid.Uint16().Draw(t, "flags"), Client: address("ciaddr"), Yours: address("yiaddr"),
		Relay: address("giaddr"), MAC: [6]byte(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "chaddr"))}
	m.Options = rapid.MapOfN(code, rapid.OneOf(rapid.SliceOfN(rapid.Byte(), 0, 16),
		rapid.SliceOfN(rapid.Byte(), 250, 800)), 0, 12).Draw(t, "options")
	return m
})

// The reference library and this package encode messages alike, and each decodes the other's messages.
func TestMessagesAreThoseOfTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := messages.Draw(t, "message")
		b := m.Encode()
		if want := theirs(m).ToBytes(); !bytes.Equal(b, want) {
			t.Fatalf("%x\nwant %x", b, want)
		}
		got, err := Decode(b)
		testkit.OK(t, err)
		if d := cmp.Diff(m, got, equalAddrs, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
		r, err := dhcpv4.FromBytes(b)
		testkit.OK(t, err)
		read, _ := ours(r)
		if d := cmp.Diff(m, read, equalAddrs, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
		same(t, got, r)
	})
}

// same compares the options that this package decoded with the ones that the reference library decoded.
func same(t testkit.T, m *Message, r *dhcpv4.DHCPv4) {
	testkit.Equal(t, "type", uint8(m.Type()), uint8(r.MessageType()))
	for code := 1; code < 255; code++ {
		a, _ := m.Options.Addr(Code(code))
		theirs := dhcpv4.GenericOptionCode(code)
		testkit.Equal(t, "address", net.IP(a.AsSlice()).String(), dhcpv4.GetIP(theirs, r.Options).String())
		list, want := m.Options.Addrs(Code(code)), dhcpv4.GetIPs(theirs, r.Options)
		testkit.Equal(t, "addresses", len(list), len(want))
		for i := range list {
			testkit.Equal(t, "address of a list", list[i].String(), want[i].String())
		}
	}
}

// message returns a valid message with options.
func message(options string) []byte {
	m := Message{Op: BootReply, XID: 7, MAC: [6]byte{2, 0, 0, 0, 0, 1}}
	return append(m.Encode()[:headerLen], options...)
}

func TestBadMessagesAreRefused(t *testing.T) {
	long := strings.Repeat("x", 255)
	for _, c := range []struct {
		name  string
		bytes []byte
		want  string // part of the error
	}{
		{"nothing", nil, "0 bytes"},
		{"a part of the header", message("")[:headerLen-1], "239 bytes"},
		{"no options", message(""), "without an End"},
		{"pads only", message("\x00\x00\x00"), "without an End"},
		{"no end", message("\x35\x01\x05"), "without an End"},
		{"no length", message("\x35\x01\x05\x0c"), "option 12: runs past"},
		{"length beyond", message("\x0c\x04abc"), "option 12: runs past"},
		{"End inside of what is missing", message("\x0c\x02\xff"), "option 12: runs past"},
		{"second part cut", message("\x0c\xff" + long + "\x0c\xff" + long[1:]), "option 12: runs past"},
		{"other cookie", append(message("")[:headerLen-1], 0, 255), "magic cookie 0x63825300"},
		{"Token Ring", func() []byte { b := message("\xff"); b[1] = 6; return b }(), "type 6"},
		{"address of 16 bytes", func() []byte { b := message("\xff"); b[2] = 16; return b }(), "addresses of 16 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.ErrorSays(t, testkit.Err(Decode(c.bytes)), "DHCP message: ", c.want)
		})
	}
}

// Decode ignores pads, bytes after End, and options in sname and file, and joins the parts of an option.
func TestOptionsAreRead(t *testing.T) {
	long := strings.Repeat("x", 255)
	overloaded := message("\x34\x01\x03\x35\x01\x05\xff") // sname and file both have options
	copy(overloaded[44:], "\x35\x01\x06\xff")
	copy(overloaded[108:], "\x0c\x01b\xff")
	for _, c := range []struct {
		name  string
		bytes []byte
		want  Options
	}{
		{"none", message("\xff"), Options{}},
		{"behind End", message("\xff\x35\x01\x05"), Options{}},
		{"pads", message("\x00\x35\x01\x05\x00\x00\x0c\x01a\x00\xff"),
			Options{MessageType: {5}, HostName: []byte("a")}},
		{"an empty one", message("\x0c\x00\xff"), Options{HostName: nil}},
		{"in parts", message("\x0c\xff" + long + "\x35\x01\x05\x0c\x01y\xff"),
			Options{HostName: []byte(long + "y"), MessageType: {5}}},
		{"type twice", message("\x35\x01\x05\x35\x01\x06\xff"), Options{MessageType: {5, 6}}},
		{"overload", overloaded, Options{52: {3}, MessageType: {5}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Decode(c.bytes)
			testkit.OK(t, err)
			if d := cmp.Diff(c.want, m.Options); d != "" {
				t.Error(d)
			}
		})
	}
	twice := Message{Options: Options{MessageType: {5, 6}, ServerID: {1, 2, 3, 4, 5}, DNS: {1, 2, 3, 4, 5}}}
	testkit.Equal(t, "type of two", twice.Type(), 0)
	if a, ok := twice.Options.Addr(ServerID); ok || a.IsValid() || twice.Options.Addrs(DNS) != nil {
		t.Error("five bytes are an address")
	}
}

// This package and the reference library decode any bytes alike. A decoded message that is encoded and decoded again
// is the same.
func FuzzDecode(f *testing.F) {
	for _, options := range []string{"", "\xff", "\x00\x35\x01\x05\xff", "\x0c\x00\xff", "\x0c\x04abc",
		"\x35\x01\x05\x0c",
		"\x0c\x01a\x0c\x01b\xff", "\x06\x08\x01\x02\x03\x04\x05\x06\x07\x08\xff\x00", "\x34\x01\x03\x34\x01\x01\xff"} {
		f.Add(message(options))
	}
	f.Add(make([]byte, headerLen))
	f.Add([]byte{1, 1, 6})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		m, err := Decode(b)
		r, rerr := dhcpv4.FromBytes(b)
		if !bytes.Equal(b, before) {
			t.Fatal("Decode has written to its input")
		}
		if err != nil {
			if rerr == nil && len(b) > headerLen { // the reference needs no End if there are no options at all
				if _, ok := ours(r); ok {
					t.Fatalf("%v, and the reference reads %v", err, r)
				}
			}
			return
		}
		testkit.OK(t, rerr)
		want, ok := ours(r)
		testkit.Equal(t, "Ethernet", ok, true)
		if d := cmp.Diff(want, m, equalAddrs); d != "" {
			t.Fatal(d)
		}
		same(t, m, r)
		total := 0
		for _, v := range m.Options {
			total += len(v)
		}
		if total > len(b) {
			t.Fatalf("%d bytes of options of a message of %d", total, len(b))
		}
		again, err := Decode(m.Encode())
		testkit.OK(t, err)
		if d := cmp.Diff(m, again, equalAddrs); d != "" {
			t.Fatal(d)
		}
	})
}
