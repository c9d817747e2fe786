package block

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

type target struct {
	protocol  string
	host      string
	port      uint16
	name      string // the subsystem's NQN, or the NBD export's name
	namespace uint32
}

// defaultPorts are the ports that IANA has assigned, by protocol.
var defaultPorts = map[string]uint16{transfer.NVMeTCP: 4420, transfer.NBD: 10809}

const form = "nvme-tcp://HOST[:PORT]/NQN[?nsid=N] or nbd://HOST[:PORT]/[EXPORT]"

// parseTarget parses a URL as the text form describes it; nbd:// is the NBD project's (uri.md).
func parseTarget(s string) (t target, err error) {
	wrong := func(why string) (target, error) { return t, fmt.Errorf("%s: %s: %s", s, why, form) }
	u, err := url.Parse(s)
	if err != nil {
		return wrong("not a URL")
	}
	t = target{protocol: u.Scheme, host: u.Hostname(), name: strings.TrimPrefix(u.Path, "/"), namespace: 1}
	t.port = defaultPorts[t.protocol]
	switch {
	case u.Scheme == "nbds" || u.Scheme == "nbd+unix" || u.Scheme == "nbds+unix":
		return wrong("only nbd:// over TCP: TLS cannot be decrypted in device memory here, and a NIC reaches no Unix socket")
	case t.port == 0:
		return wrong("protocol " + strconv.Quote(u.Scheme))
	case t.host == "":
		return wrong("no host")
	case u.User != nil || u.Fragment != "":
		return wrong("neither a user nor a fragment")
	case t.protocol == transfer.NVMeTCP && t.name == "":
		return wrong("no NQN, as nqn.2026-01.org.example:disk0")
	case len(t.name) > 223 && t.protocol == transfer.NVMeTCP: // NVM Express Base Specification 2.0, 4.5
		return wrong("an NQN of more than 223 bytes")
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return wrong("port " + p)
		}
		t.port = uint16(n)
	}
	for key, values := range u.Query() {
		n, err := strconv.ParseUint(values[0], 10, 32)
		if key != "nsid" || t.protocol != transfer.NVMeTCP || len(values) > 1 || err != nil || n == 0 || n == 1<<32-1 {
			return wrong("?" + u.RawQuery)
		}
		t.namespace = uint32(n)
	}
	return t, nil
}

// resolve returns the target's address for guests: for a host that is this machine's loopback the gateway's.
func (o *Options) resolve(ctx context.Context) (netip.AddrPort, error) {
	t, family := &o.target, o.Family
	list, err := net.DefaultResolver.LookupNetIP(ctx, fmt.Sprint("ip", family), t.host)
	if session.OnHost(t.host) || slices.ContainsFunc(list, netip.Addr.IsLoopback) {
		return netip.AddrPortFrom(o.GatewayAddr(), t.port), nil
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s: %w: an address, or a name that has one (--family %d)", t.host, err, family)
	}
	for _, a := range list {
		if a = a.Unmap(); a.Is4() == (family == 4) {
			return netip.AddrPortFrom(a, t.port), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("%s: no address of this family (--family %d)", t.host, family)
}
