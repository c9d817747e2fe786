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

// findInterface returns the name of a driver's only network interface.
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

// addRoutes adds default routes through the interface. The kernel removes IPv4 routes together with
// the interface's last IPv4 address.
func addRoutes(link netlink.Link, gateways []netip.Addr) error {
	for _, g := range gateways {
		if err := rtnl.AddDefaultRoute(link, g, 0); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("route by %v: %w", g, err)
		}
	}
	return nil
}

// rtoSettings are TCP settings (Linux Documentation/networking/ip-sysctl.rst): no tail loss probes,
// and a retransmission timeout of at least 2 s.
var rtoSettings = map[string]string{"tcp_early_retrans": "0", "tcp_rto_min_us": "2000000"}

// raiseMinRTO applies rtoSettings. It ignores settings that the kernel does not have.
func raiseMinRTO() error {
	for name, value := range rtoSettings {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// takeDown removes the addresses that Open has added to an interface. The interface stays up.
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
