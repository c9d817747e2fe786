package kernel

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"

	"vnic.dev/vnic/devmem"
)

// Numbers and names of the generic netlink family "netdev" (Documentation/netlink/specs/netdev.yaml,
// include/uapi/linux/netdev.h).
const (
	netdevFamily = "netdev"

	cmdPagePoolGet = 5  // NETDEV_CMD_PAGE_POOL_GET
	cmdQueueGet    = 10 // NETDEV_CMD_QUEUE_GET
	cmdQstatsGet   = 12 // NETDEV_CMD_QSTATS_GET
	cmdBindRx      = 13 // NETDEV_CMD_BIND_RX
	cmdBindTx      = 15 // NETDEV_CMD_BIND_TX

	attrDmabufIfindex = 1 // NETDEV_A_DMABUF_*
	attrDmabufQueues  = 2
	attrDmabufFD      = 3
	attrDmabufID      = 4

	attrQueueID      = 1 // NETDEV_A_QUEUE_*
	attrQueueIfindex = 2
	attrQueueType    = 3
	attrQueueNAPI    = 4
	attrQueueDmabuf  = 5

	attrPoolIfindex  = 2 // NETDEV_A_PAGE_POOL_*
	attrPoolInflight = 4
	attrPoolDmabuf   = 7

	attrQstatsIfindex = 1 // NETDEV_A_QSTATS_*
	attrQstatsHWDrops = 13

	queueTypeRx = 0 // NETDEV_QUEUE_TYPE_RX
)

// genlConn has the methods of *genetlink.Conn that genl uses.
type genlConn interface {
	GetFamily(name string) (genetlink.Family, error)
	Execute(m genetlink.Message, family uint16, flags netlink.HeaderFlags) ([]genetlink.Message, error)
	SetOption(option netlink.ConnOption, enable bool) error
	Close() error
}

type genl struct {
	genlConn
	family genetlink.Family
}

type dialFunc func() (genlConn, error)

func dialKernel() (genlConn, error) { return genetlink.Dial(nil) }

func (f dialFunc) open(family string) (*genl, error) {
	c, err := f()
	if err != nil {
		return nil, fmt.Errorf("generic netlink: %w", err)
	}
	// With this option the kernel may add a text to an error (extack).
	_ = c.SetOption(netlink.ExtendedAcknowledge, true)
	g := &genl{genlConn: c}
	if g.family, err = c.GetFamily(family); err != nil {
		_ = c.Close()
		if errors.Is(err, syscall.ENOENT) {
			err = errors.Join(syscall.EOPNOTSUPP, err)
		}
		return nil, fmt.Errorf("netlink family %q: %w", family, err)
	}
	return g, nil
}

// ask sends a command, as a request for a list if dump is set, and calls reply with the attributes of each answer. If
// reply is nil and dump is not set, it waits for an acknowledgement only.
func (g *genl) ask(cmd uint8, dump bool, request attrs, reply func(*netlink.AttributeDecoder)) error {
	flags := netlink.Request
	switch {
	case dump:
		flags |= netlink.Dump
	case reply == nil:
		flags |= netlink.Acknowledge
	}
	b, err := request.encode()
	if err != nil {
		return err
	}
	m := genetlink.Message{Header: genetlink.Header{Command: cmd, Version: g.family.Version}, Data: b}
	answers, err := g.Execute(m, g.family.ID, flags)
	if err != nil {
		return err
	}
	for _, a := range answers {
		ad, err := netlink.NewAttributeDecoder(a.Data)
		if err != nil {
			return err
		}
		if reply != nil {
			reply(ad)
		}
		if err := ad.Err(); err != nil {
			return fmt.Errorf("answer to command %d: %w", cmd, err)
		}
	}
	return nil
}

// noAttach is the kernel's message if a dma-buf cannot be attached to a NIC (net/core/devmem.c,
// net_devmem_bind_dmabuf).
const noAttach = "Failed to bind dmabuf to device"

// bind binds a dma-buf to an interface, and to queues for receive. The binding, whose id it returns, ends when g is
// closed.
func (g *genl) bind(cmd uint8, ifindex, fd int, queues []int) (id uint32, err error) {
	request := attrs{{attrDmabufIfindex, uint32(ifindex)}, {attrDmabufFD, uint32(fd)}}
	for _, q := range queues {
		queue := attrs{{attrQueueID, uint32(q)}, {attrQueueType, uint32(queueTypeRx)}}
		request = append(request, attr{attrDmabufQueues, queue})
	}
	err = g.ask(cmd, false, request, fields{attrDmabufID: &id}.decode)
	if errors.Is(err, syscall.EOPNOTSUPP) && strings.Contains(err.Error(), noAttach) {
		return 0, fmt.Errorf("%w: who made the dma-buf refuses this NIC: of a PCI device's memory, that the NIC cannot "+
			"reach it from where it is in the PCIe tree (the kernel's log names both: \"cannot be used for peer-to-peer "+
			"DMA\")", err)
	}
	if err == nil && id == 0 {
		return 0, fmt.Errorf("the answer has no id: %w", syscall.EPROTO)
	}
	return id, err
}

// rxQueues lists receive queues; an interface that is down has none.
func (g *genl) rxQueues(ifindex int) (qs []devmem.QueueStats, err error) {
	err = g.eachQueue(ifindex, func(queue int, binding, _ uint32) {
		qs = append(qs, devmem.QueueStats{Queue: queue, Binding: binding})
	})
	return qs, err
}

// eachQueue calls f with the number of each receive queue, and the ids of its binding and its NAPI instance. An id of 0
// means none.
func (g *genl) eachQueue(ifindex int, f func(queue int, binding, napi uint32)) error {
	return g.ask(cmdQueueGet, true, attrs{{attrQueueIfindex, uint32(ifindex)}}, func(ad *netlink.AttributeDecoder) {
		var queue, index, binding, napi uint32
		kind := ^uint32(0)
		fields{attrQueueID: &queue, attrQueueIfindex: &index, attrQueueType: &kind, attrQueueNAPI: &napi,
			attrQueueDmabuf: &binding}.decode(ad)
		if index == uint32(ifindex) && kind == queueTypeRx {
			f(int(queue), binding, napi)
		}
	})
}

// inflight counts, by the binding's id, the pages that page pools have allocated and not freed. Some may be in a
// pool's cache.
func (g *genl) inflight(ifindex int) (map[uint32]uint64, error) {
	pages := map[uint32]uint64{}
	err := g.ask(cmdPagePoolGet, true, nil, func(ad *netlink.AttributeDecoder) {
		var index, binding uint32
		var n uint64
		fields{attrPoolIfindex: &index, attrPoolInflight: &n, attrPoolDmabuf: &binding}.decode(ad)
		if binding != 0 && index == uint32(ifindex) {
			pages[binding] += n
		}
	})
	return pages, err
}

// hwDrops returns how many received packets the NIC has dropped, if its driver reports that;
// else 0.
func (g *genl) hwDrops(ifindex int) (sum uint64, err error) {
	err = g.ask(cmdQstatsGet, true, attrs{{attrQstatsIfindex, uint32(ifindex)}}, func(ad *netlink.AttributeDecoder) {
		var n uint64
		fields{attrQstatsHWDrops: &n}.decode(ad)
		sum += n
	})
	return sum, err
}
