package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network interface.
type Link struct {
	Index        int
	Name         string
	MTU          int
	Flags        uint32 // unix.IFF_*
	OperState    OperState
	HardwareAddr net.HardwareAddr // nil if it is all zeros, as lo's
	Stats        Stats
}

// OperState is a link's operational state (IF_OPER_*, Linux Documentation/networking/operstates.rst).
type OperState uint8

// Operational states of a link on which packets can pass.
const (
	OperUnknown OperState = 0 // no carrier detection
	OperUp      OperState = 6
)

var operStates = [...]string{"unknown", "not-present", "down", "lower-layer-down", "testing", "dormant", "up"}

func (s OperState) String() string {
	if int(s) < len(operStates) {
		return operStates[s]
	}
	return operStates[OperUnknown]
}

// Stats are some counters of struct rtnl_link_stats64.
type Stats struct{ RxDropped, TxDropped, RxMissedErrors uint64 }

// Offsets in struct rtnl_link_stats64.
const (
	statsRxDropped      = 6 * 8
	statsTxDropped      = 7 * 8
	statsRxMissedErrors = 15 * 8
	statsLen            = 16 * 8 // up to and including rx_missed_errors
)

const linkHeaderLen = unix.SizeofIfInfomsg // struct ifinfomsg

// linkHeader encodes struct ifinfomsg: u8 family, u8, u16 type, s32 index, u32 flags, u32 change.
func linkHeader(index int, flags, change uint32) []byte {
	b := make([]byte, linkHeaderLen)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[8:], flags)
	native.PutUint32(b[12:], change)
	return b
}

// decodeLink decodes RTM_NEWLINK.
func decodeLink(b []byte) (l Link, err error) {
	attrs, err := attributes(b, linkHeaderLen)
	if err != nil {
		return l, err
	}
	l.Index, l.Flags = int(int32(native.Uint32(b[4:]))), native.Uint32(b[8:])
	for attrs.Next() {
		switch attrs.Type() {
		case unix.IFLA_IFNAME:
			l.Name = attrs.String()
		case unix.IFLA_MTU:
			l.MTU = int(attrs.Uint32())
		case unix.IFLA_OPERSTATE:
			l.OperState = OperState(attrs.Uint8())
		case unix.IFLA_ADDRESS:
			if hw := attrs.Bytes(); slices.ContainsFunc(hw, func(b byte) bool { return b != 0 }) {
				l.HardwareAddr = hw
			}
		case unix.IFLA_STATS64:
			if s := attrs.Bytes(); len(s) >= statsLen {
				l.Stats = Stats{native.Uint64(s[statsRxDropped:]), native.Uint64(s[statsTxDropped:]),
					native.Uint64(s[statsRxMissedErrors:])}
			}
		}
	}
	if err := attrs.Err(); err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	return l, nil
}

// linkNotFound is ENODEV, with the text of vishvananda/netlink, which users know from earlier versions.
type linkNotFound struct{}

func (linkNotFound) Error() string { return "Link not found" }
func (linkNotFound) Unwrap() error { return unix.ENODEV }

// LinkByName finds a link by its name. If there is none, the error is ENODEV.
func LinkByName(name string) (Link, error) {
	attrs := netlink.NewAttributeEncoder()
	if len(name) < unix.IFNAMSIZ {
		attrs.String(unix.IFLA_IFNAME, name)
	} else {
		attrs.String(unix.IFLA_ALT_IFNAME, name)
	}
	return findLink(linkHeader(0, 0, 0), attrs)
}

// LinkByIndex finds a link by its index. If there is none, the error is ENODEV.
func LinkByIndex(index int) (Link, error) {
	return findLink(linkHeader(index, 0, 0), netlink.NewAttributeEncoder())
}

func findLink(header []byte, attrs *netlink.AttributeEncoder) (Link, error) {
	answer, err := execute(unix.RTM_GETLINK, 0, header, attrs)
	switch {
	case err == unix.ENODEV:
		return Link{}, linkNotFound{}
	case err != nil:
		return Link{}, err
	case len(answer) != 1 || answer[0].Header.Type != unix.RTM_NEWLINK:
		return Link{}, fmt.Errorf("%d netlink messages for one link: %w", len(answer), unix.EPROTO)
	}
	return decodeLink(answer[0].Data)
}

// Links lists all links, or returns ErrInterrupted.
func Links() (links []Link, err error) {
	err = dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, linkHeader(0, 0, 0), func(message []byte) error {
		l, err := decodeLink(message)
		links = append(links, l)
		return err
	})
	if err != nil {
		return nil, err
	}
	return links, nil
}

// SetUp brings a link up.
func SetUp(index int) error {
	return change(unix.RTM_NEWLINK, 0, linkHeader(index, unix.IFF_UP, unix.IFF_UP), netlink.NewAttributeEncoder())
}

// SetMTU sets a link's MTU.
func SetMTU(index, mtu int) error {
	attrs := netlink.NewAttributeEncoder()
	attrs.Uint32(unix.IFLA_MTU, uint32(mtu))
	return change(unix.RTM_SETLINK, 0, linkHeader(index, 0, 0), attrs)
}

// BringUp sets the link's MTU (0: unchanged), brings the link up, and adds addresses without
// duplicate address detection: they can be used at once. It skips an address if the kernel's error
// for it satisfies ignore (nil: none does). added are the addresses that the link did not have
// before, also after an error.
func (l Link) BringUp(mtu int, addrs []netip.Prefix, ignore func(netip.Prefix, error) bool) (added []netip.Prefix,
	err error) {
	if mtu != 0 && mtu != l.MTU {
		if err := SetMTU(l.Index, mtu); err != nil {
			return nil, fmt.Errorf("MTU %d: %w", mtu, err)
		}
	}
	if err := SetUp(l.Index); err != nil {
		return nil, fmt.Errorf("up: %w", err)
	}
	for _, p := range addrs {
		err := AddAddr(l.Index, p, false)
		if err == nil {
			added = append(added, p)
		} else if !errors.Is(err, unix.EEXIST) && (ignore == nil || !ignore(p, err)) {
			return added, fmt.Errorf("address %v: %w", p, err)
		}
	}
	return added, nil
}

// OfDriver returns the names of a driver's network interfaces, in the order of their devices' paths.
// sys is the directory of sysfs.
func OfDriver(sys, driver string) (names []string, err error) {
	links, err := filepath.Glob(filepath.Join(sys, "class/net/*/device/driver"))
	places := map[string]string{}
	for _, l := range links {
		to, err := os.Readlink(l)
		place, perr := filepath.EvalSymlinks(filepath.Dir(l))
		if err == nil && perr == nil && filepath.Base(to) == driver {
			name := filepath.Base(filepath.Dir(filepath.Dir(l)))
			names, places[name] = append(names, name), place
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(places[a], places[b]) })
	return names, err
}
