package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/stack"
)

// Loss is where segments may be lost. It decides TCP's settings for retransmission.
type Loss int

// Kinds of Loss.
const (
	NoLoss   Loss = iota // nowhere
	PoolLoss             // at the receiver, whose page pool is too small
	LinkLoss             // on the link
)

// Open starts vnic's stack on a NIC and makes a Node of both, whose Close closes the NIC. cpu reads the guest's CPU
// time, except CPU.Spin; nil: unknown. After an error the NIC is closed.
func Open(n *driver.NIC, addrs []netip.Prefix, gateways []netip.Addr, mtu int, loss Loss,
	cpu func() (CPU, error)) (*Node, error) {
	o := stack.Options{Addresses: addrs, Gateways: gateways, MTU: mtu, RACK: loss == LinkLoss}
	if loss == NoLoss {
		o.MinRTO = limits.LossFreeRTO.Here()
	}
	s, err := stack.New(n, n.Control(), o)
	if err != nil {
		_ = n.Close()
		return nil, fmt.Errorf("start the stack: %w", err)
	}
	var read func() CPU
	if cpu != nil {
		if _, err := cpu(); err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("read CPU time: %w", err)
		}
		read = func() CPU {
			c, _ := cpu() // an error is unlikely: an earlier call succeeded
			c.Spin = n.Stats().Spin.Seconds()
			return c
		}
	}
	node := NewNode(s, n.Control(), n, read)
	node.port = newPort(n.Control(), n.MAC())
	return node, nil
}

// Close cancels running operations, and closes the device with the NIC; for a Node that Another made it leaves both
// open.
func (n *Node) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), limits.Finish.Here())
	defer cancel()
	err := errors.Join(n.Leave(ctx), n.CloseStorage(ctx), n.CloseSource(ctx), n.CloseRDMA(ctx),
		n.Finish(ctx))
	if n.more {
		return err
	}
	return n.dev.Close() // also closes what Node.release could not
}
