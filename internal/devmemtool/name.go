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

// resolve gives a name's addresses, as net.Resolver.LookupNetIP does.
type resolve func(ctx context.Context, network, name string) ([]netip.Addr, error)

// hosts finds names of /etc/hosts, where guests of vnic have each other, and asks no server of names.
var hosts = resolve((&net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}}).LookupNetIP)

// lookup finds the address of a name. A guest's name is that of its kernel; devmem programs have an address of their
// own, and it is meant. IPv4 goes first.
func (r resolve) lookup(name string) (netip.Addr, error) {
	ctx := context.Background()
	var list []netip.Addr
	if own, ok := guestnet.DevmemNameOf(name); ok {
		list, _ = r(ctx, "ip", own)
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
