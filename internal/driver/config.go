package driver

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/virtionet"
)

// errNoConfig is the error of transport.config if the transport has no access to the configuration space.
var errNoConfig = errors.New("no configuration space")

// Offsets in struct virtio_net_config (virtio 1.3, 5.1.4).
const (
	configMAC    = 0
	configStatus = 6
	configPairs  = 8 // max_virtqueue_pairs
	configMTU    = 10
)

const statusLinkUp = 1 // VIRTIO_NET_S_LINK_UP

const (
	defaultMTU = 1500
	minMTU     = 68
)

// readConfig determines the MAC, the MTU and the number of queue pairs. mac, if not nil, and mtu, if not 0, take
// precedence over the device's configuration space.
func (n *NIC) readConfig(mac net.HardwareAddr, mtu int) error {
	n.mac, n.mtu = mac, mtu
	if n.mac == nil && n.features&virtionet.FMAC != 0 {
		var b [6]byte
		if err := n.t.config(configMAC, b[:]); err == nil {
			n.mac = b[:]
		} else if !errors.Is(err, errNoConfig) {
			return fmt.Errorf("reading the MAC: %w", err)
		}
	}
	if n.mac == nil {
		return errors.New("the device has no MAC address: give one in the options")
	}
	if len(n.mac) != 6 {
		return fmt.Errorf("MAC address %v: not 6 bytes", n.mac)
	}
	if n.mtu == 0 && n.features&virtionet.FMTU != 0 {
		if v, err := n.config16(configMTU); err == nil {
			n.mtu = int(v)
		} else if !errors.Is(err, errNoConfig) {
			return fmt.Errorf("reading the MTU: %w", err)
		}
	}
	if n.mtu == 0 {
		n.mtu = defaultMTU
	}
	if n.mtu < minMTU || n.mtu > 0xffff {
		return fmt.Errorf("MTU %d: %w", n.mtu, unix.EINVAL)
	}
	return n.countPairs()
}

func (n *NIC) countPairs() error {
	pairs := 1
	if n.features&virtionet.FMQ != 0 {
		pairs = n.t.pairs()
		if v, err := n.config16(configPairs); err == nil {
			pairs = int(v)
		} else if !errors.Is(err, errNoConfig) {
			return fmt.Errorf("reading the number of queue pairs: %w", err)
		}
	}
	if pairs < 1 {
		return fmt.Errorf("%w: it has %d queue pairs", ErrBroken, pairs)
	}
	n.opts.QueuePairs = min(n.opts.QueuePairs, pairs)
	n.opts.HostQueues = min(n.opts.HostQueues, n.opts.QueuePairs)
	return nil
}

// linkUp reports whether the link is up. It returns true if VIRTIO_NET_F_STATUS was not negotiated, or if the status
// cannot be read.
func (n *NIC) linkUp() bool {
	if n.features&virtionet.FStatus == 0 {
		return true
	}
	v, err := n.config16(configStatus)
	return err != nil || v&statusLinkUp != 0
}

func (n *NIC) config16(off int) (uint16, error) {
	var b [2]byte
	if err := n.t.config(off, b[:]); err != nil {
		return 0, err
	}
	return le.Uint16(b[:]), nil
}
