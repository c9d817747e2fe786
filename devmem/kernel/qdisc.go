package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// From include/uapi/linux/pkt_sched.h, gen_stats.h and rtnetlink.h.
const (
	tcHRoot       = 0xffffffff // TC_H_ROOT
	tcmsgLen      = 20         // struct tcmsg: u8 family, 3 unused, s32 ifindex, u32 handle, parent, info
	tcaKind       = 1          // TCA_KIND
	tcaStats2     = 7          // TCA_STATS2
	tcaStatsBasic = 1          // TCA_STATS_BASIC, struct gnet_stats_basic: u64 bytes, u32 packets
	tcaStatsQueue = 3          // TCA_STATS_QUEUE, struct gnet_stats_queue: u32 qlen, backlog, drops, requeues, overlimits
)

// errOwnQdisc means that somebody has set the interface's root queueing discipline: it has a handle.
var errOwnQdisc = errors.New("its queueing discipline is not the default")

type asker func(netlink.Message) ([]netlink.Message, error)

func withRoutes(f func(asker) error) error {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	return errors.Join(f(c.Execute), c.Close())
}

// tcmsg makes a request about queueing disciplines.
func tcmsg(kind netlink.HeaderType, flags netlink.HeaderFlags, ifindex int, parent uint32,
	attrs []byte) netlink.Message {
	b := make([]byte, tcmsgLen, tcmsgLen+len(attrs))
	binary.NativeEndian.PutUint32(b[4:], uint32(ifindex))
	binary.NativeEndian.PutUint32(b[12:], parent)
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | flags}, Data: append(b, attrs...)}
}

// replaceQdisc makes an interface's default queueing disciplines drop their packets: it replaces them by mq, and
// restores the default. If the root discipline is not the default, replaceQdisc returns errOwnQdisc and changes
// nothing.
func replaceQdisc(ask asker, ifindex int) error {
	all, err := qdiscs(ask, ifindex)
	if err != nil {
		return err
	}
	for _, q := range all {
		if q.parent == tcHRoot && q.handle != 0 {
			return errOwnQdisc
		}
	}
	kind, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: tcaKind, Data: []byte("mq\x00")}})
	if err != nil {
		return err
	}
	if _, err := ask(tcmsg(unix.RTM_NEWQDISC, netlink.Acknowledge|netlink.Create|netlink.Replace, ifindex, tcHRoot,
		kind)); err != nil {
		return fmt.Errorf("replace the queueing discipline: %w", err)
	}
	if _, err := ask(tcmsg(unix.RTM_DELQDISC, netlink.Acknowledge, ifindex, tcHRoot, nil)); err != nil {
		return fmt.Errorf("set the queueing discipline back: %w", err)
	}
	return nil
}

// place is a queueing discipline's position. A default discipline has handle 0; parent is
// tcHRoot for the root, and below mq contains the transmit queue's number, from 1.
type place struct{ handle, parent uint32 }

type qdisc struct {
	place
	kind    string
	gone    uint64 // bytes that the discipline has sent
	waiting uint32 // packets in the discipline
}

// shared reports whether the discipline is mq or mqprio: these hold no packets themselves, but have a discipline for
// each transmit queue.
func (q qdisc) shared() bool { return q.kind == "mq" || q.kind == "mqprio" }

// qdiscs lists an interface's queueing disciplines; values that the kernel does not report are 0.
func qdiscs(ask asker, ifindex int) ([]qdisc, error) {
	msgs, err := ask(tcmsg(unix.RTM_GETQDISC, netlink.Dump, ifindex, 0, nil))
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	var all []qdisc
	for _, m := range msgs {
		u := binary.NativeEndian.Uint32
		if len(m.Data) < tcmsgLen || u(m.Data[4:]) != uint32(ifindex) { // the kernel may list other interfaces, too
			continue
		}
		q := qdisc{place: place{handle: u(m.Data[8:]), parent: u(m.Data[12:])}}
		ad, err := netlink.NewAttributeDecoder(m.Data[tcmsgLen:])
		if err == nil {
			fields{tcaKind: &q.kind, tcaStats2: fields{
				tcaStatsBasic: start{&q.gone}, tcaStatsQueue: start{&q.waiting}}}.decode(ad)
			err = ad.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("list queueing disciplines: %w", err)
		}
		all = append(all, q)
	}
	return all, nil
}
