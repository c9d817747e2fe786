package kerneltest

import (
	"bytes"
	"fmt"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// settings has the kernel's encoded answers, by the names in asked.
type settings map[string][]byte

// asked has the commands of the family "ethtool" that read the settings
// (include/uapi/linux/ethtool_netlink.h).
var asked = map[string]uint8{"features": 11, "rings": 15, "rss": 38}

func settingsOf(name string) (settings, error) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	family, err := c.GetFamily(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return nil, err
	}
	ae := netlink.NewAttributeEncoder()
	ae.Nested(1, func(ae *netlink.AttributeEncoder) error { // ETHTOOL_A_*_HEADER
		ae.String(2, name) // ETHTOOL_A_HEADER_DEV_NAME
		return nil
	})
	b, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	s := settings{}
	for what, cmd := range asked {
		ms, err := c.Execute(genetlink.Message{Header: genetlink.Header{Command: cmd, Version: family.Version}, Data: b},
			family.ID, netlink.Request)
		if err != nil {
			return nil, fmt.Errorf("%s: ask for %s: %w", name, what, err)
		}
		for _, m := range ms {
			s[what] = append(s[what], m.Data...)
		}
	}
	return s, nil
}

// differs returns the names of the settings that differ from was.
func (s settings) differs(was settings) (what []string) {
	for k := range asked {
		if !bytes.Equal(s[k], was[k]) {
			what = append(what, k)
		}
	}
	return what
}
