package kernel

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// replaceQdisc asks for a replacement of a default discipline and then for its deletion; for a configured one it asks
// for neither.
func TestQueueingDisciplineIsReplaced(t *testing.T) {
	qdisc := func(ifindex, handle, parent uint32) netlink.Message {
		b := make([]byte, tcmsgLen)
		binary.NativeEndian.PutUint32(b[4:], ifindex)
		binary.NativeEndian.PutUint32(b[8:], handle)
		binary.NativeEndian.PutUint32(b[12:], parent)
		return netlink.Message{Data: b}
	}
	refused := errors.New("refused")
	for _, c := range []struct {
		name string
		have []netlink.Message
		fail netlink.HeaderType
		want []netlink.HeaderType
		err  error
	}{
		{"default", []netlink.Message{qdisc(3, 0, tcHRoot), qdisc(3, 0x10000, 1), qdisc(4, 0x10000, tcHRoot)}, 0,
			[]netlink.HeaderType{unix.RTM_GETQDISC, unix.RTM_NEWQDISC, unix.RTM_DELQDISC}, nil},
		{"chosen", []netlink.Message{qdisc(3, 0x10000, tcHRoot)}, 0, []netlink.HeaderType{unix.RTM_GETQDISC}, errOwnQdisc},
		{"short", []netlink.Message{{Data: []byte{1}}}, unix.RTM_NEWQDISC,
			[]netlink.HeaderType{unix.RTM_GETQDISC, unix.RTM_NEWQDISC}, refused},
	} {
		var asked []netlink.HeaderType
		err := replaceQdisc(func(m netlink.Message) ([]netlink.Message, error) {
			asked = append(asked, m.Header.Type)
			if m.Header.Type == c.fail {
				return nil, refused
			}
			if m.Header.Type == unix.RTM_GETQDISC {
				return c.have, nil
			}
			if binary.NativeEndian.Uint32(m.Data[4:]) != 3 || binary.NativeEndian.Uint32(m.Data[12:]) != tcHRoot {
				t.Errorf("%s: %x", c.name, m.Data)
			}
			return nil, nil
		}, 3)
		if !errors.Is(err, c.err) || !slices.Equal(asked, c.want) {
			t.Errorf("%s: %v after %v", c.name, err, asked)
		}
	}
}

// qdiscs reads waiting packets and sent bytes from TCA_STATS2.
func TestQueueingDisciplinesAreListed(t *testing.T) {
	u32 := func(vs ...uint32) (b []byte) {
		for _, v := range vs {
			b = binary.NativeEndian.AppendUint32(b, v)
		}
		return b
	}
	message := func(ifindex, handle, parent uint32, attrs ...netlink.Attribute) netlink.Message {
		b, err := netlink.MarshalAttributes(attrs)
		testkit.OK(t, err)
		return netlink.Message{Data: append(u32(0, ifindex, handle, parent, 0), b...)}
	}
	kind := func(s string) netlink.Attribute { return netlink.Attribute{Type: tcaKind, Data: append([]byte(s), 0)} }
	stats, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: tcaStatsBasic, Data: append(binary.NativeEndian.AppendUint64(nil, 1<<40), u32(3)...)},
		{Type: tcaStatsQueue, Data: u32(7, 1000, 1, 2, 3)}})
	testkit.OK(t, err)
	ask := func(msgs ...netlink.Message) asker {
		return func(netlink.Message) ([]netlink.Message, error) { return msgs, nil }
	}
	got, err := qdiscs(ask(message(3, 0, tcHRoot, kind("mq")), message(4, 0, tcHRoot, kind("fq")), netlink.Message{},
		message(3, 0, 2, kind("fq_codel"), netlink.Attribute{Type: tcaStats2 | unix.NLA_F_NESTED, Data: stats})), 3)
	testkit.OK(t, err)
	want := []qdisc{{place{0, tcHRoot}, "mq", 0, 0}, {place{0, 2}, "fq_codel", 1 << 40, 7}}
	if !slices.Equal(got, want) || !got[0].shared() || got[1].shared() {
		t.Errorf("%+v", got)
	}
	cut := message(3, 0, 1)
	cut.Data = append(cut.Data, 1)
	if got, err := qdiscs(ask(cut), 3); err == nil {
		t.Errorf("half an attribute: %+v", got)
	}
}
