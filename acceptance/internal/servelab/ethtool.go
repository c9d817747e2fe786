package servelab

import (
	"fmt"
	"slices"

	"github.com/mdlayher/genetlink"
	mdl "github.com/mdlayher/netlink"
)

// Of the family "ethtool" (include/uapi/linux/ethtool_netlink.h).
const (
	featuresGet = 11
	featuresSet = 12
	channelsGet = 17
	channelsSet = 18

	attrHeader         = 1
	attrHeaderName     = 2
	attrWanted         = 3
	attrActive         = 4
	attrBits           = 3
	attrBit            = 1
	attrBitName        = 2
	attrBitValue       = 3
	attrCombined       = 9
	tso                = "tx-tcp-segmentation"
	checksums, scatter = "tx-checksum-ip-generic", "tx-scatter-gather"
)

// switched are what `ethtool -K tx|sg|tso|gso|gro` switches.
var switched = []string{checksums, scatter, tso, "tx-tcp6-segmentation", "tx-generic-segmentation", "rx-gro"}

// ethtool asks about eth0.
func ethtool(command uint8, body func(*mdl.AttributeEncoder)) ([]byte, error) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetOption(mdl.ExtendedAcknowledge, true)
	f, err := c.GetFamily("ethtool")
	if err != nil {
		return nil, err
	}
	ae := mdl.NewAttributeEncoder()
	ae.Nested(attrHeader, func(ae *mdl.AttributeEncoder) error {
		ae.String(attrHeaderName, iface)
		return nil
	})
	if body != nil {
		body(ae)
	}
	b, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	flags := mdl.Request
	if body != nil {
		flags |= mdl.Acknowledge
	}
	list, err := c.Execute(genetlink.Message{Header: genetlink.Header{Command: command, Version: f.Version}, Data: b},
		f.ID, flags)
	if err != nil {
		return nil, fmt.Errorf("ethtool command %d: %w", command, err)
	}
	if len(list) == 0 {
		return nil, nil
	}
	return list[0].Data, nil
}

// offloads turns checksums, scatter-gather, TSO, GSO and GRO on or off. Received checksums cannot
// be turned off: virtio_net needs CTRL_GUEST_OFFLOADS for that, which QEMU does not offer with
// vhost-user.
func offloads(on bool) error {
	_, err := ethtool(featuresSet, func(ae *mdl.AttributeEncoder) {
		ae.Nested(attrWanted, func(ae *mdl.AttributeEncoder) error {
			ae.Nested(attrBits, func(ae *mdl.AttributeEncoder) error {
				for _, name := range switched {
					ae.Nested(attrBit, func(ae *mdl.AttributeEncoder) error {
						ae.String(attrBitName, name)
						ae.Flag(attrBitValue, on)
						return nil
					})
				}
				return nil
			})
			return nil
		})
	})
	if err != nil {
		return err
	}
	active, err := features()
	if err != nil {
		return err
	}
	for _, name := range []string{checksums, scatter, tso} {
		if slices.Contains(active, name) != on {
			return fmt.Errorf("%s is not %t: %q", name, on, active)
		}
	}
	return nil
}

// features names those that are on.
func features() (names []string, err error) {
	b, err := ethtool(featuresGet, nil)
	if err != nil {
		return nil, err
	}
	ad, err := mdl.NewAttributeDecoder(b)
	if err != nil {
		return nil, err
	}
	inside := func(want uint16, f func(*mdl.AttributeDecoder)) func(*mdl.AttributeDecoder) error {
		return func(ad *mdl.AttributeDecoder) error {
			for ad.Next() {
				if ad.Type() == want {
					f(ad)
				}
			}
			return ad.Err()
		}
	}
	for ad.Next() {
		if ad.Type() == attrActive {
			ad.Nested(inside(attrBits, func(ad *mdl.AttributeDecoder) {
				ad.Nested(inside(attrBit, func(ad *mdl.AttributeDecoder) {
					ad.Nested(inside(attrBitName, func(ad *mdl.AttributeDecoder) { names = append(names, ad.String()) }))
				}))
			}))
		}
	}
	return names, ad.Err()
}

// channels is ethtool -L combined n.
func channels(n uint32) error {
	if was, err := combined(); err != nil || was == n {
		return fmt.Errorf("there are %d already: %w", was, err)
	}
	if _, err := ethtool(channelsSet, func(ae *mdl.AttributeEncoder) { ae.Uint32(attrCombined, n) }); err != nil {
		return err
	}
	if now, err := combined(); err != nil || now != n {
		return fmt.Errorf("%d, not %d: %w", now, n, err)
	}
	return nil
}

func combined() (n uint32, err error) {
	b, err := ethtool(channelsGet, nil)
	if err != nil {
		return 0, err
	}
	ad, err := mdl.NewAttributeDecoder(b)
	if err != nil {
		return 0, err
	}
	for ad.Next() {
		if ad.Type() == attrCombined {
			n = ad.Uint32()
		}
	}
	return n, ad.Err()
}
