package kernel

import (
	"bytes"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/genetlink/genltest"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// fakeNIC imitates the parts of net/core/netdev-genl.c, net/ethtool and a driver that configure an interface for the
// package.
type fakeNIC struct {
	t     *testing.T
	index int

	mu       sync.Mutex
	queues   int
	split    dataSplit // as configured
	unknown  dataSplit // the split that is reported while split is splitUnknown
	thresh   uint32
	noThresh bool
	ntuple   bool
	fixed    bool // the driver cannot turn ntuple on or off
	special  bool // the driver accepts locAny, and then chooses the location
	rules    map[uint32][]byte
	ruleRoom int
	rss      []uint32
	dflt     bool // RSS has the driver's default
	bound    map[uint32]*fakeBinding
	nextID   uint32
	pages    map[uint32]uint64 // pages in flight, by binding
	drops    uint64
	strings  []string
	values   []uint64
	conns    int   // open netlink sockets
	refusal  error // the error of binds that nothing else refuses, or nil
}

type fakeBinding struct {
	fd     int
	queues []int
	conn   *fakeConn
	kept   bool // the memory stays in use after the binding's end, until let
}

func newFake(t *testing.T, index int) *fakeNIC {
	return &fakeNIC{
		t: t, index: index, queues: 4, unknown: splitOn, rules: map[uint32][]byte{}, ruleRoom: 8, rss: equalTable(128, 4),
		dflt: true, bound: map[uint32]*fakeBinding{}, pages: map[uint32]uint64{},
	}
}

type fakeConn struct {
	*genetlink.Conn
	f    *fakeNIC
	once sync.Once
}

func (f *fakeNIC) dial() (genlConn, error) {
	families := []genetlink.Family{{ID: 20, Name: ethtoolFamily, Version: 1}, {ID: 30, Name: netdevFamily, Version: 1}}
	c := &fakeConn{f: f}
	c.Conn = genltest.Dial(func(g genetlink.Message, n netlink.Message) ([]genetlink.Message, error) {
		for _, fam := range families {
			if n.Header.Type == unix.GENL_ID_CTRL && bytes.Contains(g.Data, append([]byte(fam.Name), 0)) {
				return answer(attrs{{unix.CTRL_ATTR_FAMILY_ID, fam.ID}, {unix.CTRL_ATTR_FAMILY_NAME, fam.Name},
					{unix.CTRL_ATTR_VERSION, uint32(1)}})
			}
		}
		// A command must have the flag Acknowledge if it has no other reply, and only then.
		set := n.Header.Type == 20 && (g.Header.Command == msgRingsSet || g.Header.Command == msgFeaturesSet)
		if set != (n.Header.Flags&(netlink.Acknowledge|netlink.Dump) == netlink.Acknowledge) && n.Header.Type != 0 {
			f.t.Errorf("command %d of family %d: flags %v", g.Header.Command, n.Header.Type, n.Header.Flags)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		switch n.Header.Type {
		case 20:
			return f.serveEthtool(g)
		case 30:
			return f.serveNetdev(c, g)
		}
		return nil, genltest.Error(int(syscall.ENOENT))
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns++
	return c, nil
}

// Close ends the socket's bindings, as netdev_nl_sock_priv_destroy does.
func (c *fakeConn) Close() error {
	c.once.Do(func() {
		c.f.mu.Lock()
		defer c.f.mu.Unlock()
		c.f.conns--
		for id, b := range c.f.bound {
			if b.conn == c {
				b.conn, b.queues = nil, nil
				if !b.kept {
					delete(c.f.bound, id)
				}
			}
		}
	})
	return c.Conn.Close()
}

// keep makes a binding's memory stay in use after the binding's end, until let.
func (f *fakeNIC) keep(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bound[id].kept = true
}

func (f *fakeNIC) setQueues(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queues = n
}

// let removes a binding: its memory is no longer in use.
func (f *fakeNIC) let(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bound, id)
}

func (f *fakeNIC) refs(fd int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := int64(1)
	for _, b := range f.bound {
		if b.fd == fd {
			n++
		}
	}
	return n, nil
}

func refuse(e syscall.Errno) ([]genetlink.Message, error) { return nil, genltest.Error(int(e)) }

// answer returns a message for each list. Without one it returns an empty message, as genltest has no acknowledgements.
func answer(list ...attrs) (ms []genetlink.Message, err error) {
	if len(list) == 0 {
		list = []attrs{nil}
	}
	for _, as := range list {
		b, err := as.encode()
		if err != nil {
			return nil, err
		}
		ms = append(ms, genetlink.Message{Data: b})
	}
	return ms, nil
}

func understand(g genetlink.Message, fs fields) error {
	ad, err := netlink.NewAttributeDecoder(g.Data)
	if err != nil {
		return err
	}
	fs.decode(ad)
	return ad.Err()
}

func (f *fakeNIC) serveNetdev(c *fakeConn, g genetlink.Message) ([]genetlink.Message, error) {
	var ifindex, fd uint32
	var queues []int
	request := fields{attrDmabufIfindex: &ifindex}
	switch g.Header.Command {
	case cmdQueueGet:
		request = fields{attrQueueIfindex: &ifindex}
	case cmdBindRx:
		request[attrDmabufQueues] = func(ad *netlink.AttributeDecoder) {
			q, kind := ^uint32(0), ^uint32(0)
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				fields{attrQueueID: &q, attrQueueType: &kind}.decode(ad)
				return nil
			})
			if kind != queueTypeRx {
				q = ^uint32(0)
			}
			queues = append(queues, int(int32(q)))
		}
		fallthrough
	case cmdBindTx:
		request[attrDmabufFD] = &fd
	}
	if understand(g, request) != nil {
		return refuse(syscall.EINVAL)
	}
	if g.Header.Command != cmdPagePoolGet && ifindex != uint32(f.index) {
		return refuse(syscall.ENODEV)
	}
	switch g.Header.Command {
	case cmdBindRx:
		return f.bindRX(c, int(fd), queues)
	case cmdBindTx:
		return f.bind(c, int(fd), nil)
	case cmdQueueGet:
		return f.listQueues()
	case cmdPagePoolGet:
		var out []attrs
		for id, n := range f.pages {
			out = append(out, attrs{{1, uint32(7)}, {attrPoolIfindex, uint32(f.index)}, {attrPoolInflight, uint32(n)},
				{attrPoolDmabuf, id}})
		}
		return answer(out...)
	case cmdQstatsGet:
		return answer(attrs{{attrQstatsHWDrops, f.drops}})
	}
	return refuse(syscall.EOPNOTSUPP)
}

func (f *fakeNIC) bindRX(c *fakeConn, fd int, queues []int) ([]genetlink.Message, error) {
	if len(queues) == 0 {
		return refuse(syscall.EINVAL)
	}
	for _, q := range queues {
		switch {
		case q < 0 || q >= f.queues:
			return refuse(syscall.EINVAL)
		case f.split != splitOn, f.thresh != 0:
			return refuse(syscall.EINVAL)
		case q == 0:
			f.t.Error("bind of queue 0: gve warns of that")
			return refuse(syscall.ERANGE)
		}
		for _, b := range f.bound {
			if slices.Contains(b.queues, q) {
				return refuse(syscall.EEXIST)
			}
		}
	}
	return f.bind(c, fd, queues)
}

func (f *fakeNIC) bind(c *fakeConn, fd int, queues []int) ([]genetlink.Message, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return refuse(syscall.EBADF)
	}
	if f.refusal != nil {
		return nil, f.refusal
	}
	f.nextID++
	f.bound[f.nextID] = &fakeBinding{fd: fd, queues: queues, conn: c}
	return answer(attrs{{attrDmabufID, f.nextID}})
}

func (f *fakeNIC) listQueues() ([]genetlink.Message, error) {
	var out []attrs
	for kind := range uint32(2) {
		for q := range f.queues {
			queue := attrs{{attrQueueID, uint32(q)}, {attrQueueType, kind}, {attrQueueIfindex, uint32(f.index)}}
			for id, b := range f.bound {
				if kind == queueTypeRx && slices.Contains(b.queues, q) {
					queue = append(queue, attr{attrQueueDmabuf, id})
				}
			}
			out = append(out, queue)
		}
	}
	return answer(out...)
}

func (f *fakeNIC) serveEthtool(g genetlink.Message) ([]genetlink.Message, error) {
	var split uint8
	var thresh uint32
	var hasThresh bool
	var on, off []string
	err := understand(g, fields{
		attrHeader:         func(ad *netlink.AttributeDecoder) { ad.Nested(f.header) },
		attrRingsDataSplit: &split,
		attrRingsHDSThresh: func(ad *netlink.AttributeDecoder) { thresh, hasThresh = ad.Uint32(), true },
		attrFeaturesWanted: fields{attrBitsetBits: fields{attrBitsetBit: changedBit(&on, &off)}},
	})
	if err != nil {
		return refuse(syscall.EINVAL)
	}
	switch g.Header.Command {
	case msgRingsGet:
		reported := f.split
		if reported == splitUnknown {
			reported = f.unknown
		}
		report := attrs{{attrRingsDataSplit, reported}}
		if !f.noThresh {
			report = append(report, attr{attrRingsHDSThresh, f.thresh})
		}
		return answer(report)
	case msgRingsSet:
		for _, b := range f.bound {
			if len(b.queues) > 0 && (dataSplit(split) != f.split || thresh != f.thresh) {
				return refuse(syscall.EINVAL)
			}
		}
		if hasThresh && f.noThresh {
			return refuse(syscall.EINVAL)
		} else if hasThresh {
			f.thresh = thresh
		}
		f.split = dataSplit(split)
		return answer()
	case msgFeaturesGet:
		return answer(attrs{{attrFeaturesHW, bitList(!f.fixed)}, {attrFeaturesActive, bitList(f.ntuple)}})
	case msgFeaturesSet:
		for _, n := range append(slices.Clone(on), off...) {
			if n != ntupleFeature || f.fixed {
				return refuse(syscall.EINVAL)
			}
		}
		if len(off) > 0 && f.ntuple {
			clear(f.rules)
		}
		f.ntuple = len(on) > 0
		return answer()
	}
	return refuse(syscall.EOPNOTSUPP)
}

func (f *fakeNIC) header(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch {
		case ad.Type() == attrHeaderIndex && ad.Uint32() == uint32(f.index):
		case ad.Type() == attrHeaderFlags && ad.Uint32() == omitReply:
		default:
			f.t.Errorf("header attribute %d", ad.Type())
		}
	}
	return nil
}

// bitList returns a verbose bitset without a mask: of rx-checksum, and of ntupleFeature if ntuple is set.
func bitList(ntuple bool) attrs {
	bit := func(name string) attr { return attr{attrBitsetBit, attrs{{1, uint32(3)}, {attrBitName, name}}} }
	bits := attrs{bit("rx-checksum")}
	if ntuple {
		bits = append(bits, bit(ntupleFeature))
	}
	return attrs{{1, nil}, {attrBitsetBits, bits}} // 1: ETHTOOL_A_BITSET_NOMASK
}

func changedBit(on, off *[]string) func(*netlink.AttributeDecoder) {
	return func(ad *netlink.AttributeDecoder) {
		to := off
		var name string
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			fields{
				attrBitName:  func(ad *netlink.AttributeDecoder) { name = ad.String() },
				attrBitValue: func(*netlink.AttributeDecoder) { to = on },
			}.decode(ad)
			return nil
		})
		*to = append(*to, name)
	}
}
