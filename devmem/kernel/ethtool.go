package kernel

import (
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
)

// Numbers and names of the generic netlink family "ethtool" (Documentation/networking/ethtool-netlink.rst,
// include/uapi/linux/ethtool_netlink.h).
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

// noReply is a header attribute that asks the kernel not to reply, except by an acknowledgement.
var noReply = attr{attrHeaderFlags, uint32(omitReply)}

// dataSplit has the values ETHTOOL_TCP_DATA_SPLIT_*.
type dataSplit uint8

const (
	splitUnknown dataSplit = iota // in a request: the driver decides
	splitOff
	splitOn
)

// rings has the settings of header split in an interface's ring configuration.
type rings struct {
	split     dataSplit
	thresh    uint32 // HDS threshold in bytes, if hasThresh: packets of up to this size need not be split
	hasThresh bool
}

func header(ifindex int, more ...attr) attr {
	return attr{attrHeader, append(attrs{{attrHeaderIndex, uint32(ifindex)}}, more...)}
}

func (g *genl) getRings(ifindex int) (r rings, err error) {
	err = g.ask(msgRingsGet, false, attrs{header(ifindex)}, fields{
		attrRingsDataSplit: (*uint8)(&r.split),
		attrRingsHDSThresh: func(ad *netlink.AttributeDecoder) { r.thresh, r.hasThresh = ad.Uint32(), true },
	}.decode)
	return r, err
}

// setRings sets the split, and the threshold if r.hasThresh is set.
func (g *genl) setRings(ifindex int, r rings) error {
	request := attrs{header(ifindex, noReply), {attrRingsDataSplit, uint8(r.split)}}
	if r.hasThresh {
		request = append(request, attr{attrRingsHDSThresh, r.thresh})
	}
	return g.ask(msgRingsSet, false, request, nil)
}

type feature struct{ changeable, active bool }

func (g *genl) getFeature(ifindex int, name string) (f feature, err error) {
	err = g.ask(msgFeaturesGet, false, attrs{header(ifindex)}, fields{
		attrFeaturesHW:     hasBit(name, &f.changeable),
		attrFeaturesActive: hasBit(name, &f.active),
	}.decode)
	return f, err
}

// hasBit returns fields whose decode sets *found if a bitset contains the name. The bitset must be verbose, without a
// mask.
func hasBit(name string, found *bool) fields {
	compare := func(ad *netlink.AttributeDecoder) { *found = *found || ad.String() == name }
	return fields{attrBitsetBits: fields{attrBitsetBit: fields{attrBitName: compare}}}
}

func (g *genl) setFeature(ifindex int, name string, on bool) error {
	bit := attrs{{attrBitName, name}}
	if on {
		bit = append(bit, attr{attrBitValue, nil})
	}
	wanted := attrs{{attrBitsetBits, attrs{{attrBitsetBit, bit}}}}
	request := attrs{header(ifindex, noReply), {attrFeaturesWanted, wanted}}
	if err := g.ask(msgFeaturesSet, false, request, nil); err != nil {
		return err
	}
	if f, err := g.getFeature(ifindex, name); err != nil {
		return err
	} else if f.active != on {
		return fmt.Errorf("the driver left it: %w", syscall.EOPNOTSUPP)
	}
	return nil
}
