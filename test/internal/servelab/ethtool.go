package servelab

import (
	"fmt"
	"slices"

	mdl "github.com/mdlayher/netlink"

	"vnic.dev/vnic/test/internal/guestops"
)

// Constants of the family "ethtool" (include/uapi/linux/ethtool_netlink.h), and names of features.
const (
	featuresGet = 11
	featuresSet = 12
	channelsGet = 17
	channelsSet = 18

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

// switched has features that `ethtool -K tx|sg|tso|gso|gro` changes.
var switched = []string{checksums, scatter, tso, "tx-tcp6-segmentation", "tx-generic-segmentation", "rx-gro"}

// offloads turns the features in switched on or off, and then checks three of them. switched has no feature for the
// checksums of received frames: virtio_net would need CTRL_GUEST_OFFLOADS to change it, and vnic does not offer that.
func offloads(on bool) error {
	err := guestops.Set(guestops.Ethtool, featuresSet, func(ae *mdl.AttributeEncoder) {
		guestops.Interface(ae, iface)
		want(ae, on, switched...)
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

// want adds to a request that these features be on or off.
func want(ae *mdl.AttributeEncoder, on bool, names ...string) {
	ae.Nested(attrWanted, func(ae *mdl.AttributeEncoder) error {
		ae.Nested(attrBits, func(ae *mdl.AttributeEncoder) error {
			for _, name := range names {
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
}

func get(command uint8) (*mdl.AttributeDecoder, error) {
	b, err := guestops.Get(guestops.Ethtool, command, func(ae *mdl.AttributeEncoder) { guestops.Interface(ae, iface) })
	if err != nil {
		return nil, err
	}
	return mdl.NewAttributeDecoder(b)
}

func features() (names []string, err error) {
	ad, err := get(featuresGet)
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

// channels does what ethtool -L eth0 combined n does. It returns an error if there are n queue pairs already.
func channels(n uint32) error {
	if was, err := combined(); err != nil || was == n {
		return fmt.Errorf("there are %d already: %w", was, err)
	}
	if err := guestops.Set(guestops.Ethtool, channelsSet, func(ae *mdl.AttributeEncoder) {
		guestops.Interface(ae, iface)
		ae.Uint32(attrCombined, n)
	}); err != nil {
		return err
	}
	if now, err := combined(); err != nil || now != n {
		return fmt.Errorf("%d, not %d: %w", now, n, err)
	}
	return nil
}

func combined() (n uint32, err error) {
	ad, err := get(channelsGet)
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
