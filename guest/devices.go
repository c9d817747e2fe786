package guest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// named is a device of the guest: an entry of $VNIC_DEVICES, or the result of first. peers is the device's list of
// addresses in $VNIC_PEERS, or "".
type named struct {
	name, device string
	addr         netip.Prefix
	peers        string
}

// Devices returns the names of the guest's devices: the lab file's, or nic0, nic1 and so on. The devices at one
// position in all guests' lists share a subnet, unless the lab file gives addresses. Without a lab there is one device,
// nic0.
func Devices() (names []string, err error) {
	list, err := devices()
	for _, d := range list {
		names = append(names, d.name)
	}
	return names, err
}

// OpenDevice opens the device of this name. If the device reaches several GPUs, it uses the one that is nearest in the
// PCIe tree.
func OpenDevice(ctx context.Context, name string) (*Device, error) {
	list, err := devices()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(d named) bool { return d.name == name })
	if i < 0 {
		names, _ := Devices()
		return nil, fmt.Errorf("no device %s: the guest has %s", name, strings.Join(names, ", "))
	}
	return open(ctx, list[i])
}

func devices() (list []named, err error) {
	entries := strings.Fields(os.Getenv("VNIC_DEVICES"))
	if len(entries) == 0 { // an image of vnic image build sets VNIC_DEVICE instead
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

// peersOf returns the addresses in the entry of a device in $VNIC_PEERS, or if device is "" in the first entry. It
// returns "" if there is no such entry.
func peersOf(device string) string {
	for _, e := range strings.Fields(os.Getenv("VNIC_PEERS")) {
		if name, list, _ := strings.Cut(e, "="); name == device || device == "" {
			return list
		}
	}
	return ""
}

// parsePeers parses a result of peersOf: it returns an address for each guest, or nil if text is "". The address of a
// guest for which text has "-", as it has no such device, is the zero Addr.
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
