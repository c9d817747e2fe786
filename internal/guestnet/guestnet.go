// Package guestnet gives a guest's network interfaces their addresses, and its programs names to
// resolve: what DHCP and a name server would do, known beforehand. It is both ends: Ops registers
// the operation "network" with package agent, Apply is the host's call of it.
//
// Interfaces are known by their MAC addresses. When all is set Apply waits, by netlink's events,
// until links are up and addresses can be used: a program that is started then finds a network that works. Of
// the interfaces that are to be left the kernel's driver lets go: they are for a driver in a
// program. The package changes the files /etc/hosts and /etc/resolv.conf of the machine that it
// runs in.
package guestnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// Config is what the guest's network is to be.
type Config struct {
	Interfaces []Interface  `json:"interfaces"`
	Gateways   []netip.Addr `json:"gateways,omitempty"` // default routes, by the first interface
	DNS        []netip.Addr `json:"dns,omitempty"`
	Hosts      []Host       `json:"hosts,omitempty"`
}

// Interface is a NIC of the guest.
type Interface struct {
	MAC   string         `json:"mac"` // as net.HardwareAddr's String
	Addrs []netip.Prefix `json:"addrs,omitempty"`
	MTU   int            `json:"mtu,omitempty"`   // 0 = as it is
	Leave bool           `json:"leave,omitempty"` // the kernel is to let go of it
}

// Host is a line of /etc/hosts.
type Host struct {
	Addr  netip.Addr `json:"addr"`
	Names []string   `json:"names"`
}

// Result says what the guest calls the interfaces, in their order.
type Result struct {
	Interfaces []Found `json:"interfaces"`
	NotReady   string  `json:"not_ready,omitempty"` // what cannot be used, though it was waited for
}

// Found is an interface as the guest has it.
type Found struct {
	Name string `json:"name"` // of one that was left it is gone
	PCI  string `json:"pci"`  // "0000:00:02.0"; "" = no PCI device
}

var configure = agent.NewOperation[Config, Result]("network")

// Apply has a guest configure its network.
func Apply(ctx context.Context, c *agent.Client, conf Config) (Result, error) {
	r, err := configure.Call(ctx, c, conf)
	if err == nil && len(r.Interfaces) != len(conf.Interfaces) {
		err = fmt.Errorf("network: the guest found %d interfaces of %d", len(r.Interfaces), len(conf.Interfaces))
	}
	return r, err
}

// Ops registers the operation.
func Ops() {
	configure.Serve(func(ctx context.Context, c Config) (Result, error) { return c.apply(ctx, "/") })
}

// apply configures this machine; its files lie below root.
func (c *Config) apply(ctx context.Context, root string) (Result, error) {
	links, err := c.find(ctx)
	if err != nil {
		return Result{}, err
	}
	var r Result
	for i, l := range links {
		f := Found{Name: l.Name, PCI: pciAddress(root, l.Name)}
		r.Interfaces = append(r.Interfaces, f)
		if c.Interfaces[i].Leave {
			err = leave(root, f)
		} else {
			err = c.Interfaces[i].up(l)
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if len(links) > 0 {
		if err := c.routes(links[0]); err != nil {
			return r, fmt.Errorf("%s: %w", links[0].Name, err)
		}
	}
	if err := c.files(root); err != nil {
		return r, err
	}
	r.NotReady, err = c.ready(ctx, links, limits.InterfaceReady.Here())
	return r, err
}

// files writes what the resolver reads.
func (c *Config) files(root string) error {
	etc := filepath.Join(root, "etc")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"hosts": c.hosts(), "resolv.conf": c.resolvConf()} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// hosts is /etc/hosts (hosts(5)).
func (c *Config) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, h := range c.Hosts {
		fmt.Fprintf(&b, "%v %s\n", h.Addr, strings.Join(h.Names, " "))
	}
	return b.String()
}

// resolvConf is /etc/resolv.conf (resolv.conf(5)).
func (c *Config) resolvConf() string {
	var b strings.Builder
	for _, a := range c.DNS {
		fmt.Fprintf(&b, "nameserver %v\n", a)
	}
	return b.String()
}
