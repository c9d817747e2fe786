package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/pkt_sched.h and rtnetlink.h.
const (
	tcHRoot  = 0xffffffff // TC_H_ROOT
	tcmsgLen = 20         // struct tcmsg: u8 family, 3 unused, s32 ifindex, u32 handle, parent, info
	tcaKind  = 1          // TCA_KIND
)

// errOwnQdisc says that the interface has a queueing discipline that was chosen for it.
var errOwnQdisc = errors.New("its queueing discipline is not the default")

// dropQueued has the queueing disciplines of a network interface drop what they hold: others take
// their place, and go again. One that is not the kernel's default is left alone: nothing would set
// it up again.
func dropQueued(ifindex int) error {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	err = replaceQdisc(c.Execute, ifindex)
	return errors.Join(err, c.Close())
}

// replaceQdisc does so over a netlink socket.
func replaceQdisc(ask func(netlink.Message) ([]netlink.Message, error), ifindex int) error {
	tcmsg := make([]byte, tcmsgLen)
	binary.NativeEndian.PutUint32(tcmsg[4:], uint32(ifindex))
	request := func(kind netlink.HeaderType, flags netlink.HeaderFlags, attrs []byte) ([]netlink.Message, error) {
		return ask(netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
			Data: append(tcmsg[:tcmsgLen:tcmsgLen], attrs...)})
	}
	all, err := request(unix.RTM_GETQDISC, netlink.Dump, nil)
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	for _, m := range all {
		if u := binary.NativeEndian.Uint32; len(m.Data) >= tcmsgLen && u(m.Data[4:]) == uint32(ifindex) &&
			u(m.Data[12:]) == tcHRoot && u(m.Data[8:]) != 0 {
			return errOwnQdisc
		}
	}
	kind, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: tcaKind, Data: []byte("mq\x00")}})
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint32(tcmsg[12:], tcHRoot)
	if _, err := request(unix.RTM_NEWQDISC, netlink.Acknowledge|netlink.Create|netlink.Replace, kind); err != nil {
		return fmt.Errorf("replace the queueing discipline: %w", err)
	}
	if _, err := request(unix.RTM_DELQDISC, netlink.Acknowledge, nil); err != nil {
		return fmt.Errorf("set the queueing discipline back: %w", err)
	}
	return nil
}
