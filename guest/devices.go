package guest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// named is an entry of $VNIC_DEVICES, and that of its name in $VNIC_PEERS.
type named struct {
	name, device string
	addr         netip.Prefix
	peers        string // addresses of the guests' devices on its rail, with commas; "": nothing is said of them
}

// Devices gives the names of the guest's devices, as its lab file has them, each on a rail of its own: that of this
// name in another guest is on the same subnet. Without a lab file it is one, nic0; so it is in an image of vnic image
// build.
func Devices() (names []string, err error) {
	list, err := devices()
	for _, d := range list {
		names = append(names, d.name)
	}
	return names, err
}

// OpenDevice opens the device that has a name; of several GPUs it uses the one that is nearest in the PCIe tree.
func OpenDevice(ctx context.Context, name string) (*Device, error) {
	list, err := devices()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(d named) bool { return d.name == name })
	if i < 0 {
		names, _ := Devices() // as list has them
		return nil, fmt.Errorf("no device %s: the guest has %s", name, strings.Join(names, ", "))
	}
	return open(ctx, list[i])
}

func devices() (list []named, err error) {
	entries := strings.Fields(os.Getenv("VNIC_DEVICES"))
	if len(entries) == 0 { // in an image of vnic image build there are only the variables of the first
		d, err := first()
		if err != nil {
			return nil, err
		}
		return []named{d}, nil
	}
	for _, e := range entries {
		name, rest, _ := strings.Cut(e, "=")
		parts := strings.Split(rest, ",")
		if len(parts) < 2 {
			return nil, fmt.Errorf("VNIC_DEVICES: %q is not name=device,address: %w", e, ErrNoGuest)
		}
		d := named{name: name, device: parts[0]}
		if d.addr, err = netip.ParsePrefix(parts[1]); err != nil {
			return nil, fmt.Errorf("VNIC_DEVICES: %w: %w", err, ErrNoGuest)
		}
		d.peers = peersOf(d.name)
		list = append(list, d)
	}
	return list, nil
}

// peersOf is the entry of a device in $VNIC_PEERS, "" that of the first.
func peersOf(device string) string {
	for _, e := range strings.Fields(os.Getenv("VNIC_PEERS")) {
		if name, list, _ := strings.Cut(e, "="); name == device || device == "" {
			return list
		}
	}
	return ""
}

// parsePeers reads such an entry; nil: there is none. A guest that has no device there has no address.
func parsePeers(text string) (*[]netip.Addr, error) {
	if text == "" {
		return nil, nil
	}
	var list []netip.Addr
	for _, word := range strings.Split(text, ",") {
		var a netip.Addr
		if word != "-" {
			var err error
			if a, err = netip.ParseAddr(word); err != nil {
				return nil, fmt.Errorf("VNIC_PEERS: %w: %w", err, ErrNoGuest)
			}
		}
		list = append(list, a)
	}
	return &list, nil
}

// first is the first device, or the only one.
func first() (d named, err error) {
	d = named{name: "nic0", device: os.Getenv("VNIC_DEVICE"), peers: peersOf("")}
	addr := os.Getenv("VNIC_ADDR")
	if d.device == "" || addr == "" {
		return d, fmt.Errorf("no VNIC_DEVICE and VNIC_ADDR in the environment: %w", ErrNoGuest)
	}
	if d.addr, err = netip.ParsePrefix(addr); err != nil {
		return d, fmt.Errorf("environment: %w: %w", err, ErrNoGuest)
	}
	return d, nil
}
