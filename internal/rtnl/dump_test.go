package rtnl

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// message encodes struct nlmsghdr and data.
func message(kind, flags uint16, sequence uint32, data []byte) []byte {
	b := native.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(data)))
	b = native.AppendUint16(b, kind)
	b = native.AppendUint16(b, flags)
	b = native.AppendUint32(b, sequence)
	b = append(native.AppendUint32(b, 0), data...)
	return append(b, make([]byte, -len(b)&3)...)
}

// status returns the data of NLMSG_DONE and NLMSG_ERROR.
func status(e syscall.Errno) []byte { return native.AppendUint32(nil, uint32(-int32(e))) }

func TestDumpReaderReadsToTheEnd(t *testing.T) {
	const multi, intr = unix.NLM_F_MULTI, unix.NLM_F_MULTI | unix.NLM_F_DUMP_INTR
	link := func(flags uint16, sequence uint32) []byte {
		return message(unix.RTM_NEWLINK, flags, sequence, linkHeader(1, 0, 0))
	}
	end := func(flags uint16, e syscall.Errno) []byte { return message(unix.NLMSG_DONE, flags, 7, status(e)) }
	done, refused := end(multi, 0), message(unix.NLMSG_ERROR, 0, 7, status(unix.EPERM))
	starts := func(b ...byte) [][]byte { return [][]byte{append(b, done[len(b):]...)} }
	for name, c := range map[string]struct {
		datagrams         [][]byte
		messages          int
		interrupted, done bool
		err               error
	}{
		"in one part":              {[][]byte{append(link(multi, 7), done...)}, 1, false, true, nil},
		"in three parts":           {[][]byte{link(multi, 7), link(multi, 7), done}, 2, false, true, nil},
		"none":                     {[][]byte{done}, 0, false, true, nil},
		"end without a status":     {[][]byte{message(unix.NLMSG_DONE, multi, 7, nil)}, 0, false, true, nil},
		"not at its end":           {[][]byte{link(multi, 7)}, 1, false, false, nil},
		"interrupted":              {[][]byte{link(multi, 7), link(intr, 7), done}, 2, true, true, nil},
		"interrupted at the end":   {[][]byte{link(multi, 7), end(intr, 0)}, 1, true, true, nil},
		"another request's":        {[][]byte{link(intr, 6), done}, 0, false, true, nil},
		"another type":             {[][]byte{message(unix.RTM_NEWADDR, multi, 7, nil), done}, 0, false, true, nil},
		"error at the end":         {[][]byte{end(multi, unix.ENOMEM)}, 0, false, true, unix.ENOMEM},
		"refused":                  {[][]byte{refused}, 0, false, true, unix.EPERM},
		"empty":                    {[][]byte{{}}, 0, false, false, unix.EPROTO},
		"shorter than its header":  {[][]byte{link(multi, 7)[:10]}, 0, false, false, unix.EPROTO},
		"shorter than its length":  {[][]byte{link(multi, 7)[:20]}, 0, false, false, unix.EINVAL},
		"length below a header's":  {starts(3, 0, 0, 0), 0, false, false, unix.EINVAL},
		"length beyond all memory": {starts(0xff, 0xff, 0xff, 0xff), 0, false, false, unix.EINVAL},
	} {
		messages := 0
		d := dumpReader{sequence: 7, answer: unix.RTM_NEWLINK, each: func([]byte) error { messages++; return nil }}
		var err error
		for _, b := range c.datagrams {
			if err = d.read(b); err != nil {
				break
			}
		}
		if !errors.Is(err, c.err) || messages != c.messages || d.interrupted != c.interrupted || d.done != c.done {
			t.Errorf("%s: %d messages, interrupted %v, done %v, %v", name, messages, d.interrupted, d.done, err)
		}
	}
}

// attribute encodes struct rtattr and data.
func attribute(kind uint16, data []byte) []byte {
	b := native.AppendUint16(nil, uint16(4+len(data)))
	b = append(native.AppendUint16(b, kind), data...)
	return append(b, make([]byte, -len(b)&3)...)
}

func TestMessagesThatAreWrongAreRefused(t *testing.T) {
	link, addr := linkHeader(1, 0, 0), addrHeader(unix.AF_INET, 24, 0, 1)
	addrError := func(b []byte) error { _, _, err := decodeAddr(b); return err }
	for name, err := range map[string]error{
		"link, short":              testkit.Err(decodeLink(link[:15])),
		"link, attribute cut":      testkit.Err(decodeLink(append(link[:16:16], 9, 0, 3, 0, 'a'))),
		"link, attribute length 1": testkit.Err(decodeLink(append(link[:16:16], 1, 0, 3, 0))),
		"link, MTU of 2 bytes":     testkit.Err(decodeLink(append(link[:16:16], attribute(unix.IFLA_MTU, []byte{1, 2})...))),
		"link, state of 4 bytes": testkit.Err(decodeLink(append(link[:16:16],
			attribute(unix.IFLA_OPERSTATE, []byte{1, 2, 3, 4})...))),
		"address, short":      addrError(addr[:7]),
		"address, none":       addrError(addr),
		"address, of 3 bytes": addrError(append(addr[:8:8], attribute(unix.IFA_LOCAL, []byte{1, 2, 3})...)),
		"address, flags of 1 byte": addrError(append(addr[:8:8],
			append(attribute(unix.IFA_LOCAL, []byte{1, 2, 3, 4}), attribute(unix.IFA_FLAGS, []byte{1})...)...)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// Attributes that are not read may have any length, such as the statistics of an old or a future kernel.
	for _, n := range []int{0, 100, statsLen, 1000} {
		l := testkit.Must(decodeLink(append(link[:16:16], attribute(unix.IFLA_STATS64, make([]byte, n))...)))(t)
		testkit.Equal(t, "index", l.Index, 1)
	}
	testkit.Equal(t, "state", OperState(77).String(), "unknown")
}

// Invalid messages are errors. Results of valid ones contain only data from the message.
func FuzzDump(f *testing.F) {
	// Messages from this kernel: RTM_NEWLINK of lo and RTM_NEWADDR of 127.0.0.1.
	if c, err := netlink.Dial(unix.NETLINK_ROUTE, nil); err == nil {
		for kind, header := range map[netlink.HeaderType][]byte{
			unix.RTM_GETLINK: linkHeader(0, 0, 0), unix.RTM_GETADDR: addrHeader(0, 0, 0, 0),
		} {
			all, _ := c.Execute(netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Dump},
				Data: header})
			for _, m := range all[:min(1, len(all))] {
				f.Add(message(uint16(m.Header.Type), uint16(m.Header.Flags), 7, m.Data))
			}
		}
		_ = c.Close()
	}
	local := append(addrHeader(unix.AF_INET, 8, 0, 1), attribute(unix.IFA_LOCAL, []byte{127, 0, 0, 1})...)
	f.Add(message(unix.RTM_NEWADDR, unix.NLM_F_MULTI, 7, local))
	f.Add(message(unix.NLMSG_DONE, unix.NLM_F_MULTI|unix.NLM_F_DUMP_INTR, 7, status(unix.EINTR)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, answer := range []netlink.HeaderType{unix.RTM_NEWLINK, unix.RTM_NEWADDR} {
			size := 0
			d := dumpReader{sequence: 7, answer: answer, each: func(m []byte) error {
				size += len(m)
				if l, err := decodeLink(m); err == nil {
					if len(l.Name)+len(l.HardwareAddr) > len(m) || l.Index != int(int32(native.Uint32(m[4:]))) {
						t.Errorf("%+v of %d bytes", l, len(m))
					}
				}
				if a, index, err := decodeAddr(m); err == nil {
					if !a.IP.IsValid() || a.IP == (netip.Addr{}) || index != int(native.Uint32(m[4:])) {
						t.Errorf("%+v of link %d", a, index)
					}
				}
				return nil
			}}
			err := d.read(b)
			if size > len(b) {
				t.Errorf("%d bytes of messages in %d", size, len(b))
			}
			if err == nil && len(b) < unix.SizeofNlMsghdr {
				t.Errorf("%d bytes are no datagram", len(b))
			}
		}
	})
}
