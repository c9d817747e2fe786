package uplink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Config describes where an uplink leads: exactly one of VXLAN, Tap and Stream is set.
type Config struct {
	Name   string
	VXLAN  *VXLAN
	Tap    string // name of the device
	Stream *Stream
}

// VXLAN is a tunnel to one peer.
type VXLAN struct {
	Local  netip.AddrPort // at which the uplink receives datagrams
	Remote netip.AddrPort // where the peer receives; its datagrams come from this address and any port
	VNI    uint32
}

// Stream is a socket, a file name with a slash in it or HOST:PORT, at which this side listens, or to which it connects.
type Stream struct {
	Listen  string `yaml:"listen,omitempty"`
	Connect string `yaml:"connect,omitempty"`
}

// MaxVNI is the greatest VXLAN network identifier (RFC 7348, 5).
const MaxVNI = 1<<24 - 1

// Error is an error in a part of a Config; Key is the part's name in lab files, or "" for the whole.
type Error struct{ Key, Text string }

func (e *Error) Error() string { return e.Text }

// Check returns the first error that it finds in the Config, an *Error, or nil. It does not check Name.
func (c *Config) Check() error {
	kinds := 0
	for _, given := range []bool{c.VXLAN != nil, c.Tap != "", c.Stream != nil} {
		if given {
			kinds++
		}
	}
	if kinds != 1 {
		return &Error{"", "an uplink is one of vxlan, tap and stream"}
	}
	switch {
	case c.VXLAN != nil:
		return c.VXLAN.check()
	case c.Stream != nil:
		return c.Stream.check()
	case len(c.Tap) >= unix.IFNAMSIZ || strings.ContainsAny(c.Tap, "/ \t\n%"):
		return &Error{"tap", fmt.Sprintf("%q is no name of a device: 1 to %d bytes", c.Tap, unix.IFNAMSIZ-1)}
	}
	return nil
}

func (v *VXLAN) check() error {
	for _, a := range []struct {
		key  string
		addr netip.AddrPort
	}{{"local", v.Local}, {"remote", v.Remote}} {
		switch {
		case !a.addr.IsValid() || a.addr.Port() == 0:
			return &Error{a.key, a.key + " is an address and a port, as 192.0.2.1:4789 or [2001:db8::1]:4789"}
		case a.addr.Addr().IsMulticast():
			return &Error{a.key, fmt.Sprintf("%s is %s, a group's address: a tunnel has one peer", a.key, a.addr.Addr())}
		}
	}
	switch {
	case v.Remote.Addr().IsUnspecified():
		return &Error{"remote", fmt.Sprintf("remote is %s, which is nobody's address", v.Remote.Addr())}
	case v.Local.Addr().Unmap().Is4() != v.Remote.Addr().Unmap().Is4():
		return &Error{"remote", "local and remote are both of IPv4, or both of IPv6"}
	case v.Local == v.Remote:
		return &Error{"remote", "local and remote are the same"}
	case v.VNI > MaxVNI:
		return &Error{"vni", fmt.Sprintf("VNI %d: 0 to %d", v.VNI, MaxVNI)}
	}
	return nil
}

func (s *Stream) check() error {
	if (s.Listen == "") == (s.Connect == "") {
		return &Error{"stream", "a stream has listen or connect, and not both"}
	}
	key, addr := "listen", s.Listen
	if addr == "" {
		key, addr = "connect", s.Connect
	}
	if network(addr) == "unix" {
		if len(addr) >= len(unix.RawSockaddrUnix{}.Path) {
			return &Error{key, fmt.Sprintf("%s is %s, %d bytes: a socket's name has %d at most", key, addr, len(addr),
				len(unix.RawSockaddrUnix{}.Path)-1)}
		}
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || host == "" {
		return &Error{key, fmt.Sprintf("%s is %q: a file's name with a slash in it, as ./up.sock, or HOST:PORT", key, addr)}
	}
	return nil
}

func network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}

const forms = "vxlan=LOCAL,REMOTE,VNI, tap=NAME, stream=listen:ADDRESS or stream=connect:ADDRESS"

// Parse parses and checks the value of the flag --uplink (forms). The Config has no Name.
func Parse(s string) (c Config, err error) {
	kind, rest, _ := strings.Cut(s, "=")
	switch kind {
	case "vxlan":
		words := strings.Split(rest, ",")
		if len(words) != 3 {
			return c, errors.New("not " + forms)
		}
		v := VXLAN{}
		v.Local, _ = netip.ParseAddrPort(words[0])
		v.Remote, _ = netip.ParseAddrPort(words[1])
		vni, err := strconv.ParseUint(words[2], 10, 32)
		if err != nil {
			return c, fmt.Errorf("VNI %s: 0 to %d", words[2], MaxVNI)
		}
		v.VNI = uint32(vni)
		c.VXLAN = &v
	case "tap":
		c.Tap = rest
	case "stream":
		scheme, addr, _ := strings.Cut(rest, ":")
		switch scheme {
		case "listen":
			c.Stream = &Stream{Listen: addr}
		case "connect":
			c.Stream = &Stream{Connect: addr}
		default:
			return c, errors.New("not " + forms)
		}
	default:
		return c, errors.New("not " + forms)
	}
	return c, c.Check()
}

// String formats a valid Config in the syntax of Parse, without the Name.
func (c *Config) String() string {
	switch {
	case c.VXLAN != nil:
		return fmt.Sprintf("vxlan=%s,%s,%d", c.VXLAN.Local, c.VXLAN.Remote, c.VXLAN.VNI)
	case c.Stream != nil && c.Stream.Listen != "":
		return "stream=listen:" + c.Stream.Listen
	case c.Stream != nil:
		return "stream=connect:" + c.Stream.Connect
	}
	return "tap=" + c.Tap
}
