// Package guestnet gives a guest's network interfaces their addresses, and its programs names to resolve:
// values that DHCP and a name server would provide, but known beforehand. [Ops] registers the operation
// "network" with package agent, [Apply] is the host's call of it.
//
// The guest waits until the interfaces are there, at most limits.Interface, and then until the links without
// Interface.Leave are up and their addresses can be used, at most limits.InterfaceReady; both times limits.Slow.
// [Configure] writes the files /etc/hosts and /etc/resolv.conf of the machine on which it runs.
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

// Config is the wanted configuration of the guest's network.
type Config struct {
	Interfaces []Interface  `json:"interfaces"`
	Gateways   []netip.Addr `json:"gateways,omitempty"` // default routes, through the first interface
	DNS        []netip.Addr `json:"dns,omitempty"`
	Hosts      []Host       `json:"hosts,omitempty"`
}

// Interface is a NIC of the guest.
type Interface struct {
	MAC   string         `json:"mac"` // as net.HardwareAddr's String
	Addrs []netip.Prefix `json:"addrs,omitempty"`
	MTU   int            `json:"mtu,omitempty"`   // 0: unchanged
	Leave bool           `json:"leave,omitempty"` // unbind it from the kernel's driver; the addresses and MTU are not used
}

// Host is a line of /etc/hosts.
type Host struct {
	Addr  netip.Addr `json:"addr"`
	Names []string   `json:"names"`
}

// Result has the guest's interfaces, in the order of Config.Interfaces.
type Result struct {
	Interfaces []Found `json:"interfaces"`
	NotReady   string  `json:"not_ready,omitempty"` // what cannot be used after the wait; "": nothing
}

// Found is an interface in the guest.
type Found struct {
	Name string `json:"name"` // the kernel's; gone after Interface.Leave
	PCI  string `json:"pci"`  // "0000:00:02.0"; "": no PCI device
}

var configure = agent.NewOperation[Config, Result]("network")

// Apply makes the guest of c configure its network. It is an error if the guest found fewer or more interfaces.
func Apply(ctx context.Context, c *agent.Client, conf Config) (Result, error) {
	r, err := configure.Call(ctx, c, conf)
	if err == nil && len(r.Interfaces) != len(conf.Interfaces) {
		err = fmt.Errorf("network: the guest found %d interfaces of %d", len(r.Interfaces), len(conf.Interfaces))
	}
	return r, err
}

// Ops registers the operation "network" with package agent.
func Ops() { configure.Serve(Configure) }

func (c *Config) apply(ctx context.Context, root string) (Result, error) {
	links, err := c.find(ctx)
	if err != nil {
		return Result{}, err
	}
	var r Result
	for i, l := range links {
		name := l.Attrs().Name
		f := Found{Name: name, PCI: pciAddress(root, name)}
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
			return r, fmt.Errorf("%s: %w", links[0].Attrs().Name, err)
		}
	}
	if err := c.files(root); err != nil {
		return r, err
	}
	r.NotReady, err = c.ready(ctx, links, limits.InterfaceReady.Here())
	return r, err
}

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

func (c *Config) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, h := range c.Hosts {
		fmt.Fprintf(&b, "%v %s\n", h.Addr, strings.Join(h.Names, " "))
	}
	return b.String()
}

func (c *Config) resolvConf() string {
	var b strings.Builder
	for _, a := range c.DNS {
		fmt.Fprintf(&b, "nameserver %v\n", a)
	}
	return b.String()
}
