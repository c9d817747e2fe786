package kernel

import (
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
)

// Of the family "ethtool" (Documentation/networking/ethtool-netlink.rst, include/uapi/linux/ethtool_netlink.h).
const (
	ethtoolFamily = "ethtool"

	msgFeaturesGet = 11 // ETHTOOL_MSG_FEATURES_GET
	msgFeaturesSet = 12 // ETHTOOL_MSG_FEATURES_SET
	msgRingsGet    = 15 // ETHTOOL_MSG_RINGS_GET
	msgRingsSet    = 16 // ETHTOOL_MSG_RINGS_SET

	attrHeader      = 1 // ETHTOOL_A_RINGS_HEADER, ETHTOOL_A_FEATURES_HEADER
	attrHeaderIndex = 1 // ETHTOOL_A_HEADER_DEV_INDEX
	attrHeaderFlags = 3 // ETHTOOL_A_HEADER_FLAGS
	omitReply       = 2 // ETHTOOL_FLAG_OMIT_REPLY

	attrRingsDataSplit = 11 // ETHTOOL_A_RINGS_TCP_DATA_SPLIT
	attrRingsHDSThresh = 17 // ETHTOOL_A_RINGS_HDS_THRESH

	attrFeaturesHW     = 2 // ETHTOOL_A_FEATURES_HW
	attrFeaturesWanted = 3 // ETHTOOL_A_FEATURES_WANTED
	attrFeaturesActive = 4 // ETHTOOL_A_FEATURES_ACTIVE

	attrBitsetBits = 3 // ETHTOOL_A_BITSET_BITS
	attrBitsetBit  = 1 // ETHTOOL_A_BITSET_BITS_BIT
	attrBitName    = 2 // ETHTOOL_A_BITSET_BIT_NAME
	attrBitValue   = 3 // ETHTOOL_A_BITSET_BIT_VALUE

	ntupleFeature = "rx-ntuple-filter" // net/ethtool/common.c:netdev_features_strings
)

// dataSplit is enum ethtool_tcp_data_split.
type dataSplit uint8

const (
	splitUnknown dataSplit = iota // the driver decides
	splitOff
	splitOn
)

// rings is what of a ring configuration devmem needs.
type rings struct {
	split     dataSplit
	thresh    uint32 // payload of packets up to this may stay with the header
	hasThresh bool
}

func (g *genl) header(ae *netlink.AttributeEncoder, ifindex int, flags uint32) {
	ae.Nested(attrHeader, func(ae *netlink.AttributeEncoder) error {
		ae.Uint32(attrHeaderIndex, uint32(ifindex))
		if flags != 0 {
			ae.Uint32(attrHeaderFlags, flags)
		}
		return nil
	})
}

func (g *genl) getRings(ifindex int) (r rings, err error) {
	err = g.ask(msgRingsGet, false, func(ae *netlink.AttributeEncoder) { g.header(ae, ifindex, 0) },
		func(ad *netlink.AttributeDecoder) {
			for ad.Next() {
				switch ad.Type() {
				case attrRingsDataSplit:
					r.split = dataSplit(ad.Uint8())
				case attrRingsHDSThresh:
					r.thresh, r.hasThresh = ad.Uint32(), true
				}
			}
		})
	return r, err
}

// setRings sets the split, and with hasThresh the threshold.
func (g *genl) setRings(ifindex int, r rings) error {
	return g.ask(msgRingsSet, false, func(ae *netlink.AttributeEncoder) {
		g.header(ae, ifindex, omitReply)
		ae.Uint8(attrRingsDataSplit, uint8(r.split))
		if r.hasThresh {
			ae.Uint32(attrRingsHDSThresh, r.thresh)
		}
	}, nil)
}

// feature is one feature of an interface.
type feature struct{ changeable, active bool }

func (g *genl) getFeature(ifindex int, name string) (f feature, err error) {
	err = g.ask(msgFeaturesGet, false, func(ae *netlink.AttributeEncoder) { g.header(ae, ifindex, 0) },
		func(ad *netlink.AttributeDecoder) {
			for ad.Next() {
				switch ad.Type() {
				case attrFeaturesHW:
					ad.Nested(hasBit(name, &f.changeable))
				case attrFeaturesActive:
					ad.Nested(hasBit(name, &f.active))
				}
			}
		})
	return f, err
}

// hasBit looks for a bit in a list of those that are set: a verbose bitset without a mask.
func hasBit(name string, found *bool) func(*netlink.AttributeDecoder) error {
	bit := func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			if ad.Type() == attrBitName && ad.String() == name {
				*found = true
			}
		}
		return nil
	}
	bits := func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			if ad.Type() == attrBitsetBit {
				ad.Nested(bit)
			}
		}
		return nil
	}
	return func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			if ad.Type() == attrBitsetBits {
				ad.Nested(bits)
			}
		}
		return nil
	}
}

// setFeature turns a feature on or off.
func (g *genl) setFeature(ifindex int, name string, on bool) error {
	err := g.ask(msgFeaturesSet, false, func(ae *netlink.AttributeEncoder) {
		g.header(ae, ifindex, omitReply)
		ae.Nested(attrFeaturesWanted, func(ae *netlink.AttributeEncoder) error {
			ae.Nested(attrBitsetBits, func(ae *netlink.AttributeEncoder) error {
				ae.Nested(attrBitsetBit, func(ae *netlink.AttributeEncoder) error {
					ae.String(attrBitName, name)
					if on {
						ae.Flag(attrBitValue, true)
					}
					return nil
				})
				return nil
			})
			return nil
		})
	}, nil)
	if err != nil {
		return err
	}
	if f, err := g.getFeature(ifindex, name); err != nil {
		return err
	} else if f.active != on {
		return fmt.Errorf("the driver left it: %w", syscall.EOPNOTSUPP)
	}
	return nil
}
