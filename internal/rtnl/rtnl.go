// Package rtnl reads and changes network interfaces, their addresses and routes, by Linux's rtnetlink (rtnetlink(7),
// include/uapi/linux/rtnetlink.h, if_link.h and if_addr.h).
// The package has only the functions that vnic and its guests need: vishvananda/netlink, with which
// the tests compare it, has all others, and takes much longer to compile. jsimonetti/rtnetlink
// hides interrupted dumps, and the errno of a missing link.
//
// Each call opens a socket of its own in the network namespace of its thread. Errors of the kernel are returned as
// syscall.Errno.
package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrInterrupted means that links or addresses changed while the kernel listed them
// (NLM_F_DUMP_INTR): the caller should list them again.
var ErrInterrupted = errors.New("results may be incomplete or inconsistent")

var native = binary.NativeEndian

// add is the flags of a request to make something: the kernel returns EEXIST if it exists.
const add = netlink.Create | netlink.Excl

// change sends a request to which the kernel answers only with an acknowledgement.
func change(kind netlink.HeaderType, flags netlink.HeaderFlags, header []byte, attrs *netlink.AttributeEncoder) error {
	_, err := execute(kind, flags|netlink.Acknowledge, header, attrs)
	return err
}

func execute(kind netlink.HeaderType, flags netlink.HeaderFlags, header []byte, attrs *netlink.AttributeEncoder) (
	[]netlink.Message, error) {
	b, err := attrs.Encode()
	if err != nil {
		return nil, err
	}
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, errno(err)
	}
	defer func() { _ = c.Close() }()
	answer, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags}, Data: append(header, b...),
	})
	return answer, errno(err)
}

// errno returns the errno inside an error of package netlink.
func errno(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// attributes decodes the attributes of a message, which follow its header of n bytes.
func attributes(message []byte, n int) (*netlink.AttributeDecoder, error) {
	if len(message) < n {
		return nil, fmt.Errorf("netlink message of %d bytes, its header has %d: %w", len(message), n, unix.EPROTO)
	}
	return netlink.NewAttributeDecoder(message[n:])
}
