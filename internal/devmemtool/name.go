package devmemtool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"vnic.dev/vnic/internal/guestnet"
)

type resolve func(ctx context.Context, network, name string) ([]netip.Addr, error)

// hosts looks names up in /etc/hosts alone.
var hosts = resolve((&net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}}).LookupNetIP)

// lookup returns an address of a name, preferably an IPv4 address. For a guest's name it first looks up the name of the
// guest's devmem programs (guestnet.DevmemNameOf).
func (r resolve) lookup(name string) (netip.Addr, error) {
	ctx := context.Background()
	var list []netip.Addr
	if devmemName, ok := guestnet.DevmemNameOf(name); ok {
		list, _ = r(ctx, "ip", devmemName)
	}
	if len(list) == 0 {
		list, _ = r(ctx, "ip", name)
	}
	if len(list) == 0 {
		return netip.Addr{}, fmt.Errorf("%s is neither an address nor a name of /etc/hosts", name)
	}
	for i := range list {
		list[i] = list[i].Unmap()
	}
	return list[max(0, slices.IndexFunc(list, netip.Addr.Is4))], nil
}
