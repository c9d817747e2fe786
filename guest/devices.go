package guest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// named is an entry of $VNIC_DEVICES.
type named struct {
	name, device string
	addr         netip.Prefix
}

// Devices gives the names of the guest's devices, as its lab file has them, each on a rail of its own: that of this
// name in another guest is on the same subnet. Without a lab file it is one, nic0.
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
		return nil, fmt.Errorf("no device %s: VNIC_DEVICES is %q", name, os.Getenv("VNIC_DEVICES"))
	}
	return open(ctx, list[i].device, list[i].addr)
}

func devices() (list []named, err error) {
	entries := strings.Fields(os.Getenv("VNIC_DEVICES"))
	if len(entries) == 0 {
		return nil, fmt.Errorf("no VNIC_DEVICES in the environment: %w", ErrNoGuest)
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
		list = append(list, d)
	}
	return list, nil
}
