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
	"vnic.dev/vnic/internal/testkit"
)

// fakeNIC is the kernel's side of an interface's configuration, as of net/core/netdev-genl.c, net/ethtool and a driver
// like gve's. It moves no byte.
type fakeNIC struct {
	t     *testing.T
	index int

	mu       sync.Mutex
	queues   int
	split    dataSplit // configured
	unknown  dataSplit // what the driver reports when it decides
	thresh   uint32
	noThresh bool
	ntuple   bool
	fixed    bool // the driver has no ntuple
	special  bool // it places rules itself
	rules    map[uint32][]byte
	ruleRoom int
	rss      []uint32
	dflt     bool // the RSS table was reset last
	bound    map[uint32]*fakeBinding
	nextID   uint32
	pages    map[uint32]uint64 // by binding, in flight
	drops    uint64
	strings  []string
	values   []uint64
	conns    int // open sockets
}

type fakeBinding struct {
	fd     int
	queues []int
	conn   *fakeConn
	kept   bool // memory is in use after the end
}

func newFake(t *testing.T, index int) *fakeNIC {
	f := &fakeNIC{
		t: t, index: index, queues: 4, unknown: splitOn, rules: map[uint32][]byte{}, ruleRoom: 8, rss: equalTable(128, 4),
		dflt: true, bound: map[uint32]*fakeBinding{}, pages: map[uint32]uint64{},
	}
	return f
}

// fakeConn is a netlink socket.
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
				return []genetlink.Message{{Data: encode(t0, func(ae *netlink.AttributeEncoder) {
					ae.Uint16(unix.CTRL_ATTR_FAMILY_ID, fam.ID)
					ae.String(unix.CTRL_ATTR_FAMILY_NAME, fam.Name)
					ae.Uint32(unix.CTRL_ATTR_VERSION, 1)
				})}}, nil
			}
		}
		// A reply and an acknowledgement are one too many for genetlink's Execute.
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

// let frees what a binding that has ended still used.
func (f *fakeNIC) let(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bound, id)
}

// refs is how many references there are to a dma-buf: our own, and the bindings'.
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

var t0 = &testing.T{}

func encode(t *testing.T, fill func(*netlink.AttributeEncoder)) []byte {
	ae := netlink.NewAttributeEncoder()
	fill(ae)
	b, err := ae.Encode()
	testkit.OK(t, err)
	return b
}

// refuse is what the kernel answers with an errno.
func refuse(e syscall.Errno) ([]genetlink.Message, error) { return nil, genltest.Error(int(e)) }

func answer(bs ...[]byte) (ms []genetlink.Message, err error) {
	for _, b := range bs {
		ms = append(ms, genetlink.Message{Data: b})
	}
	if len(ms) == 0 { // genltest has no acknowledgement
		ms = []genetlink.Message{{}}
	}
	return ms, nil
}

func (f *fakeNIC) serveNetdev(c *fakeConn, g genetlink.Message) ([]genetlink.Message, error) {
	var ifindex, fd uint32
	var queues []int
	ad, err := netlink.NewAttributeDecoder(g.Data)
	if err != nil {
		return refuse(syscall.EINVAL)
	}
	for ad.Next() {
		switch {
		case ad.Type() == attrDmabufFD && (g.Header.Command == cmdBindRx || g.Header.Command == cmdBindTx):
			fd = ad.Uint32()
		case ad.Type() == attrDmabufQueues && g.Header.Command == cmdBindRx:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				q, kind := -1, -1
				for ad.Next() {
					switch ad.Type() {
					case attrQueueID:
						q = int(ad.Uint32())
					case attrQueueType:
						kind = int(ad.Uint32())
					}
				}
				if kind != queueTypeRx {
					q = -1
				}
				queues = append(queues, q)
				return nil
			})
		case ad.Type() == 1 || ad.Type() == attrQueueIfindex && g.Header.Command == cmdQueueGet:
			ifindex = ad.Uint32()
		}
	}
	if ad.Err() != nil {
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
		var out [][]byte
		for id, n := range f.pages {
			out = append(out, encode(f.t, func(ae *netlink.AttributeEncoder) {
				ae.Uint32(1, 7)
				ae.Uint32(attrPoolIfindex, uint32(f.index))
				ae.Uint32(attrPoolInflight, uint32(n))
				ae.Uint32(attrPoolDmabuf, id)
			}))
		}
		return answer(out...)
	case cmdQstatsGet:
		return answer(encode(f.t, func(ae *netlink.AttributeEncoder) { ae.Uint64(attrQstatsHWDrops, f.drops) }))
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
	f.nextID++
	f.bound[f.nextID] = &fakeBinding{fd: fd, queues: queues, conn: c}
	return answer(encode(f.t, func(ae *netlink.AttributeEncoder) { ae.Uint32(attrDmabufID, f.nextID) }))
}

func (f *fakeNIC) listQueues() ([]genetlink.Message, error) {
	var out [][]byte
	for kind := range uint32(2) {
		for q := range f.queues {
			out = append(out, encode(f.t, func(ae *netlink.AttributeEncoder) {
				ae.Uint32(attrQueueID, uint32(q))
				ae.Uint32(attrQueueType, kind)
				ae.Uint32(attrQueueIfindex, uint32(f.index))
				for id, b := range f.bound {
					if kind == queueTypeRx && slices.Contains(b.queues, q) {
						ae.Uint32(attrQueueDmabuf, id)
					}
				}
			}))
		}
	}
	return answer(out...)
}

func (f *fakeNIC) serveEthtool(g genetlink.Message) ([]genetlink.Message, error) {
	set := map[uint16]uint32{}
	var on, off []string
	ad, err := netlink.NewAttributeDecoder(g.Data)
	if err != nil {
		return refuse(syscall.EINVAL)
	}
	for ad.Next() {
		switch {
		case ad.Type() == attrHeader:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch {
					case ad.Type() == attrHeaderIndex && ad.Uint32() == uint32(f.index):
					case ad.Type() == attrHeaderFlags && ad.Uint32() == omitReply:
					default:
						f.t.Errorf("header attribute %d", ad.Type())
					}
				}
				return nil
			})
		case g.Header.Command == msgFeaturesSet && ad.Type() == attrFeaturesWanted:
			ad.Nested(changedBits(&on, &off))
		case ad.Type() == attrRingsDataSplit:
			set[ad.Type()] = uint32(ad.Uint8())
		default:
			set[ad.Type()] = ad.Uint32()
		}
	}
	if ad.Err() != nil {
		return refuse(syscall.EINVAL)
	}
	switch g.Header.Command {
	case msgRingsGet:
		return answer(encode(f.t, func(ae *netlink.AttributeEncoder) {
			reported := f.split
			if reported == splitUnknown {
				reported = f.unknown
			}
			ae.Uint8(attrRingsDataSplit, uint8(reported))
			if !f.noThresh {
				ae.Uint32(attrRingsHDSThresh, f.thresh)
			}
		}))
	case msgRingsSet:
		for _, b := range f.bound {
			if len(b.queues) > 0 && (dataSplit(set[attrRingsDataSplit]) != f.split || set[attrRingsHDSThresh] != f.thresh) {
				return refuse(syscall.EINVAL)
			}
		}
		if th, ok := set[attrRingsHDSThresh]; ok && f.noThresh {
			return refuse(syscall.EINVAL)
		} else if ok {
			f.thresh = th
		}
		f.split = dataSplit(set[attrRingsDataSplit])
		return answer()
	case msgFeaturesGet:
		return answer(encode(f.t, func(ae *netlink.AttributeEncoder) {
			ae.Nested(attrFeaturesHW, bitList(!f.fixed, ntupleFeature))
			ae.Nested(attrFeaturesActive, bitList(f.ntuple, ntupleFeature))
		}))
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

func bitList(has bool, name string) func(*netlink.AttributeEncoder) error {
	return func(ae *netlink.AttributeEncoder) error {
		ae.Flag(1, true) // ETHTOOL_A_BITSET_NOMASK
		ae.Nested(attrBitsetBits, func(ae *netlink.AttributeEncoder) error {
			for _, n := range []string{"rx-checksum", name} {
				if n != name || has {
					ae.Nested(attrBitsetBit, func(ae *netlink.AttributeEncoder) error {
						ae.Uint32(1, 3)
						ae.String(attrBitName, n)
						return nil
					})
				}
			}
			return nil
		})
		return nil
	}
}

func changedBits(on, off *[]string) func(*netlink.AttributeDecoder) error {
	return func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					ad.Nested(func(ad *netlink.AttributeDecoder) error {
						name, value := "", false
						for ad.Next() {
							switch ad.Type() {
							case attrBitName:
								name = ad.String()
							case attrBitValue:
								value = true
							}
						}
						if value {
							*on = append(*on, name)
						} else {
							*off = append(*off, name)
						}
						return nil
					})
				}
				return nil
			})
		}
		return nil
	}
}
