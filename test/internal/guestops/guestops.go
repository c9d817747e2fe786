// Package guestops is shared by the programs of the tests' guests.
package guestops

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	link "github.com/vishvananda/netlink"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/boot"
)

// Main registers operations, whose arguments are JSON values of type A, runs vnic's guest program, and exits
// with its status.
func Main[A any](ops map[string]func(context.Context, *A) (any, error)) {
	for name, op := range ops {
		agent.Register(name, func(ctx context.Context, raw json.RawMessage) (any, error) {
			var a A
			if len(raw) > 0 {
				if err := json.Unmarshal(raw, &a); err != nil {
					return nil, err
				}
			}
			out, err := op(ctx, &a)
			if out == nil {
				out = struct{}{}
			}
			return out, err
		})
	}
	os.Exit(boot.Main(os.Args))
}

// Splat matches the kernel's messages about its own faults, and some of the gve driver.
var Splat = regexp.MustCompile(`WARNING:|BUG:|\bOops\b|cut here|Call Trace|Kernel panic|general protection|` +
	`refcount_t:|use-after-free|blocked for more than|hung task|stalled pool|page_pool_release_retry|` +
	`NETDEV WATCHDOG|[Tt]imeout on tx queue|AQ commands? (failed|timed out)|Timeout to configure|` +
	`DISABLING ALL QUEUES|Reset failed|scheduling reset|Performing reset|Device requested reset|` +
	`Unrecoverable platform error`)

// Link calls change with an interface; what names the change in an error.
func Link(name, what string, change func(link.Link) error) error {
	l, err := link.LinkByName(name)
	if err == nil {
		err = change(l)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", name, what, err)
	}
	return nil
}

// Get sends a request, whose attributes body encodes, to a family of generic netlink. It returns the data of the first
// answer, or nil if none comes.
func Get(family string, command uint8, body func(*netlink.AttributeEncoder)) ([]byte, error) {
	return ask(family, command, 0, body)
}

// Set is Get for a command that the kernel only acknowledges.
func Set(family string, command uint8, body func(*netlink.AttributeEncoder)) error {
	_, err := ask(family, command, netlink.Acknowledge, body)
	return err
}

func ask(family string, command uint8, flags netlink.HeaderFlags, body func(*netlink.AttributeEncoder)) ([]byte,
	error) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetOption(netlink.ExtendedAcknowledge, true)
	f, err := c.GetFamily(family)
	if err != nil {
		return nil, err
	}
	ae := netlink.NewAttributeEncoder()
	body(ae)
	b, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	list, err := c.Execute(genetlink.Message{Header: genetlink.Header{Command: command, Version: f.Version}, Data: b},
		f.ID, netlink.Request|flags)
	if err != nil {
		return nil, fmt.Errorf("%s command %d: %w", family, command, err)
	}
	if len(list) == 0 {
		return nil, nil
	}
	return list[0].Data, nil
}

// The family "ethtool", and attributes of its requests (include/uapi/linux/ethtool_netlink.h).
const (
	Ethtool        = "ethtool"
	attrHeader     = 1
	attrHeaderName = 2
)

// Interface adds to a request to Ethtool the header attribute that names an interface.
func Interface(ae *netlink.AttributeEncoder, name string) {
	ae.Nested(attrHeader, func(ae *netlink.AttributeEncoder) error {
		ae.String(attrHeaderName, name)
		return nil
	})
}
