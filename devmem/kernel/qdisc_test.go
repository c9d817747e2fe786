package kernel

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The default discipline is replaced and set back; one that was chosen stays.
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
