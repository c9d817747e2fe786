package vfiouser

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

// golden messages, byte for byte: the layouts of vfio-user.rst, and what QEMU 11.1 sends (gve.md, section 2).
func TestGoldenMessages(t *testing.T) {
	var head [HeaderLen]byte
	(&Header{ID: 0x1234, Command: CmdRegionWrite, Size: 0x24, Flags: FlagNoReply, Errno: 5}).encode(&head)
	var m [dmaMapLen]byte
	(&dmaMap{argsz: 32, flags: dmaRead | dmaWrite, offset: 0xc0000, iova: 0x1_0000_0000, size: 0x8000}).encode(&m)
	var u [dmaUnmapLen]byte
	(&dmaUnmap{argsz: 24, flags: unmapAll, iova: 1, size: 2}).encode(&u)
	var i [irqSetLen]byte
	(&irqSet{argsz: 20, flags: irqFDs | irqTrigger, index: IRQMSIX, start: 3, count: 1}).encode(&i)
	var r [regionInfoLen]byte
	(&regionInfo{argsz: 32, flags: regionRead | regionWrite, index: 7, caps: 0, size: 256, offset: 9}).encode(&r)
	var a [accessLen]byte
	(&access{offset: 0x14, region: 2, count: 4}).encode(&a)
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"header", head[:], "\x34\x12\x0a\x00\x24\x00\x00\x00\x10\x00\x00\x00\x05\x00\x00\x00"},
		{"DMA_MAP", m[:],
			"\x20\x00\x00\x00\x03\x00\x00\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00"},
		{"DMA_UNMAP", u[:],
			"\x18\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"},
		{"SET_IRQS", i[:], "\x14\x00\x00\x00\x24\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00"},
		{"GET_REGION_INFO", r[:],
			"\x20\x00\x00\x00\x03\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00"},
		{"REGION_READ", a[:], "\x14\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00"},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s: % x, wanted % x", c.name, c.got, c.want)
		}
	}
}

// FuzzMessage decodes any message, and encodes what came out again: the same bytes.
//
// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func FuzzMessage(f *testing.F) {
	for _, c := range []struct {
		cmd  Command
		body []byte
	}{
		{CmdVersion, []byte("\x00\x00\x01\x00{\"capabilities\":{\"max_msg_fds\":16,\"write_multiple\":true}}\x00")},
		{CmdDMAMap, make([]byte, dmaMapLen)}, {CmdDMAUnmap, make([]byte, dmaUnmapLen)}, {CmdGetInfo, make([]byte, infoLen)},
		{CmdGetRegionInfo, make([]byte, regionInfoLen)}, {CmdGetIRQInfo, make([]byte, irqInfoLen)},
		{CmdSetIRQs, append(make([]byte, irqSetLen), 1, 0)}, {CmdRegionRead, make([]byte, accessLen)},
		{CmdRegionWrite, make([]byte, accessLen+4)}, {CmdReset, nil},
		{CmdRegionWriteMulti, make([]byte, multiHeadLen+multiLen)},
		{CmdFeature, make([]byte, 8)}, {99, nil},
	} {
		var h [HeaderLen]byte
		(&Header{ID: 1, Command: c.cmd, Size: uint32(HeaderLen + len(c.body))}).encode(&h)
		f.Add(append(h[:], c.body...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderLen {
			return
		}
		var m message
		m.Header.decode((*[HeaderLen]byte)(b))
		var head [HeaderLen]byte
		if m.Header.encode(&head); !bytes.Equal(head[:], b[:HeaderLen]) {
			t.Fatalf("header % x from % x", head, b[:HeaderLen])
		}
		if err := m.check(); err != nil {
			if !errors.Is(err, ErrBadMessage) {
				t.Fatal(err)
			}
			return
		}
		m.body = b[HeaderLen:]
		if _, err := ruleFor(&m); err != nil {
			if e := errno(err); e != unix.EINVAL && e != unix.ENOTSUP {
				t.Fatal(err)
			}
			return
		}
		again := func(v interface{ encoded() []byte }) {
			if got := v.encoded(); !bytes.Equal(got, m.body[:len(got)]) {
				t.Fatalf("%v: % x from % x", m.Command, got, m.body)
			}
		}
		switch m.Command {
		case CmdVersion:
			_, _, data, has, err := decodeVersion(m.body)
			if err != nil {
				if !errors.Is(err, ErrBadMessage) {
					t.Fatal(err)
				}
				return
			}
			if !has {
				return
			}
			answer := versionData{data.Capabilities.answer()}
			text, err := json.Marshal(answer)
			testkit.OK(t, err)
			var back versionData
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if n := back.Capabilities.MaxMsgFDs; n != nil && (*n > MaxFDs || data.Capabilities.MaxMsgFDs == nil) {
				t.Fatalf("%d descriptors", *n)
			}
		case CmdDMAMap:
			var v dmaMap
			v.decode((*[dmaMapLen]byte)(m.body))
			again(&v)
		case CmdDMAUnmap:
			var v dmaUnmap
			v.decode((*[dmaUnmapLen]byte)(m.body))
			again(&v)
		case CmdGetInfo:
			var v deviceInfo
			v.decode((*[infoLen]byte)(m.body))
			again(&v)
		case CmdGetRegionInfo:
			var v regionInfo
			v.decode((*[regionInfoLen]byte)(m.body))
			again(&v)
		case CmdGetIRQInfo:
			var v irqInfo
			v.decode((*[irqInfoLen]byte)(m.body))
			again(&v)
		case CmdSetIRQs:
			var v irqSet
			v.decode((*[irqSetLen]byte)(m.body))
			again(&v)
		case CmdRegionRead, CmdRegionWrite:
			var v access
			v.decode((*[accessLen]byte)(m.body))
			again(&v)
		}
	})
}

func (d *dmaMap) encoded() []byte     { var b [dmaMapLen]byte; d.encode(&b); return b[:] }
func (d *dmaUnmap) encoded() []byte   { var b [dmaUnmapLen]byte; d.encode(&b); return b[:] }
func (d *deviceInfo) encoded() []byte { var b [infoLen]byte; d.encode(&b); return b[:] }
func (r *regionInfo) encoded() []byte { var b [regionInfoLen]byte; r.encode(&b); return b[:] }
func (i *irqInfo) encoded() []byte    { var b [irqInfoLen]byte; i.encode(&b); return b[:] }
func (i *irqSet) encoded() []byte     { var b [irqSetLen]byte; i.encode(&b); return b[:] }
func (a *access) encoded() []byte     { var b [accessLen]byte; a.encode(&b); return b[:] }
