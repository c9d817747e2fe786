package gvelab

import (
	"context"
	"errors"
	"fmt"
	"net"

	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/test/internal/guestops"
)

func carrier(name string) (bool, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return false, err
	}
	return link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0, nil
}

// Constants of the families "ethtool" and "netdev" (include/uapi/linux/ethtool_netlink.h, netdev.h).
const (
	cmdRingsSet    = 16
	cmdChannelsSet = 18

	attrRingsRX       = 6
	attrRingsTX       = 9
	attrChannelsRX    = 6
	attrChannelsTX    = 7
	netdevFamily      = "netdev"
	cmdBindRX         = 13
	attrDmabufIfindex = 1
	attrDmabufQueues  = 2
	attrDmabufFD      = 3
	attrQueueID       = 1
	attrQueueType     = 3
	queueTypeRX       = 0
)

// set sends a command of ethtool with attributes, numbers of 32 bits, for the interface under test.
func set(command uint8, attrs map[uint16]uint32) error {
	err := guestops.Set(guestops.Ethtool, command, func(ae *mdl.AttributeEncoder) {
		guestops.Interface(ae, underTestName)
		for a, v := range attrs {
			ae.Uint32(a, v)
		}
	})
	if err != nil {
		return fmt.Errorf("%v: %w", attrs, err)
	}
	return nil
}

// reconfigure makes the driver recreate its queues.
func (g *guest) reconfigure(ctx context.Context, _ *Args) (any, error) {
	if err := g.dut.close(); err != nil { // the device's flow rule and RSS table are for 4 queues
		return nil, err
	}
	g.dut = nil
	mtu := func(n int) func() error {
		return func() error {
			return guestops.Link(underTestName, "MTU", func(l netlink.Link) error { return netlink.LinkSetMTU(l, n) })
		}
	}
	queues := func(n uint32) func() error {
		return func() error { return set(cmdChannelsSet, map[uint16]uint32{attrChannelsRX: n, attrChannelsTX: n}) }
	}
	rings := func(rx, tx uint32) func() error {
		return func() error { return set(cmdRingsSet, map[uint16]uint32{attrRingsRX: rx, attrRingsTX: tx}) }
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"2 queues", queues(2)}, {"1 queue", queues(1)}, {"4 queues", queues(4)},
		{"rings of 64 and 256", rings(64, 256)}, {"rings of 4096", rings(4096, 4096)},
		{"rings of 1024 and 512", rings(1024, 512)},
		{"MTU 1280", mtu(1280)}, {"MTU 1500", mtu(1500)},
	} {
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		if _, err := g.traffic(ctx, &Args{}); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	var err error
	g.dut, err = openDevice(ctx, g)
	return nil, err
}

// bindZero asks the kernel itself to bind queue 0, which must fail with ERANGE: devmem/kernel would refuse queue 0
// without asking the kernel.
func (g *guest) bindZero(context.Context, *Args) (any, error) {
	fd, _, err := g.gpu.Export(0, 0, rxSize)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	ifc, err := net.InterfaceByName(underTestName)
	if err != nil {
		return nil, err
	}
	err = guestops.Set(netdevFamily, cmdBindRX, func(ae *mdl.AttributeEncoder) {
		ae.Uint32(attrDmabufIfindex, uint32(ifc.Index))
		ae.Uint32(attrDmabufFD, uint32(fd))
		ae.Nested(attrDmabufQueues, func(ae *mdl.AttributeEncoder) error {
			ae.Uint32(attrQueueID, 0)
			ae.Uint32(attrQueueType, queueTypeRX)
			return nil
		})
	})
	if !errors.Is(err, unix.ERANGE) {
		return nil, fmt.Errorf("bind of queue 0: %v, not ERANGE", err)
	}
	return nil, nil
}
