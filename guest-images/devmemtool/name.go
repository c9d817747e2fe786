package devmemtool

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"vnic.dev/vnic/guest-images/guestnet"
)

// lookupLimit is how long names may take: a server of names may not answer.
const lookupLimit = 10 * time.Second

// resolve gives a name's addresses, as net.Resolver.LookupNetIP does: of /etc/hosts, or of the servers of names.
type resolve func(ctx context.Context, network, name string) ([]netip.Addr, error)

// lookup finds the address of a name. A guest's name is that of its kernel; devmem programs have an address of their
// own, and it is meant. IPv4 goes first.
func (r resolve) lookup(name string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	var list []netip.Addr
	var err error
	if own, ok := guestnet.DevmemNameOf(name); ok {
		list, err = r(ctx, "ip", own)
	}
	if len(list) == 0 {
		list, err = r(ctx, "ip", name)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is neither an address nor a name that this guest knows (/etc/hosts): %w", name, err)
	}
	return list[max(0, slices.IndexFunc(list, func(a netip.Addr) bool { return a.Unmap().Is4() }))], nil
}

var byName = resolve((&net.Resolver{PreferGo: true}).LookupNetIP)
