package kernelnic

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/rtnl"
)

// findInterface returns the name of a driver's only network interface. ENODEV: none; EINVAL: several. sys is sysfs.
func findInterface(sys, driver string) (string, error) {
	names, err := rtnl.OfDriver(sys, driver)
	if err != nil {
		return "", err
	}
	switch len(names) {
	case 0:
		return "", fmt.Errorf("no network interface of driver %s: is the module loaded, and did its probe succeed? %w",
			driver, unix.ENODEV)
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("network interfaces %s of driver %s: name one: %w", strings.Join(names, ", "), driver,
		unix.EINVAL)
}

// addRoutes adds a default route by each gateway through the interface, unless there is one already (EEXIST).
func addRoutes(link netlink.Link, gateways []netip.Addr) error {
	for _, g := range gateways {
		if err := rtnl.AddDefaultRoute(link, g, 0); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("route by %v: %w", g, err)
		}
	}
	return nil
}

// rtoSettings disable tail loss probes, and set TCP's least retransmission timeout to 2 s (Linux
// Documentation/networking/ip-sysctl.rst).
var rtoSettings = map[string]string{"tcp_early_retrans": "0", "tcp_rto_min_us": "2000000"}

// raiseMinRTO applies the rtoSettings that the kernel has.
func raiseMinRTO() error {
	for name, value := range rtoSettings {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// takeDown removes addresses from an interface. It is no error if the interface does not have them.
func takeDown(name string, addrs []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, p := range addrs {
		if derr := rtnl.RemoveAddr(link, p); derr != nil && !errors.Is(derr, unix.EADDRNOTAVAIL) {
			err = errors.Join(err, fmt.Errorf("%s: remove %v: %w", name, p, derr))
		}
	}
	return err
}
