package vfiouser

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/testkit"
)

// TestGoldenMessages compares encoded structures with bytes by the layouts of vfio-user.rst.
func TestGoldenMessages(t *testing.T) {
	var head [HeaderLen]byte
	(&Header{ID: 0x1234, Command: CmdRegionWrite, Size: 0x24, Flags: FlagNoReply, Errno: 5}).encode(&head)
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"header", head[:], "34120a00 24000000 10000000 05000000"},
		{"DMA_MAP", peer.Append(nil, dmaMap{32, dmaRead | dmaWrite, 0xc0000, 0x1_0000_0000, 0x8000}),
			"20000000 03000000 00000c00 00000000 00000000 01000000 00800000 00000000"},
		{"DMA_UNMAP", peer.Append(nil, dmaUnmap{24, unmapAll, 1, 2}),
			"18000000 02000000 01000000 00000000 02000000 00000000"},
		{"SET_IRQS", peer.Append(nil, irqSet{20, irqFDs | irqTrigger, IRQMSIX, 3, 1}),
			"14000000 24000000 02000000 03000000 01000000"},
		{"GET_REGION_INFO", peer.Append(nil, regionInfo{32, regionRead | regionWrite, 7, 0, 256, 9}),
			"20000000 03000000 07000000 00000000 00010000 00000000 09000000 00000000"},
		{"REGION_READ", (&access{offset: 0x14, region: 2, count: 4}).encoded(), "14000000 00000000 02000000 04000000"},
	} {
		testkit.Equal(t, c.name, hex.EncodeToString(c.got), strings.ReplaceAll(c.want, " ", ""))
	}
}

// FuzzMessage decodes headers and the fixed parts of most messages: encoded again, they must be the same bytes. It also
// decodes the data of VERSION, and encodes the answer.
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
			again[dmaMap](t, &m)
		case CmdDMAUnmap:
			again[dmaUnmap](t, &m)
		case CmdGetInfo:
			again[deviceInfo](t, &m)
		case CmdGetRegionInfo:
			again[regionInfo](t, &m)
		case CmdGetIRQInfo:
			again[irqInfo](t, &m)
		case CmdSetIRQs:
			again[irqSet](t, &m)
		case CmdRegionRead, CmdRegionWrite:
			var v access
			v.decode((*[accessLen]byte)(m.body))
			wantSame(t, &m, v.encoded())
		}
	})
}

func again[T any](t *testing.T, m *message) {
	t.Helper()
	wantSame(t, m, peer.Append(nil, peer.Decode[T](m.body)))
}

func wantSame(t *testing.T, m *message, got []byte) {
	t.Helper()
	if !bytes.Equal(got, m.body[:len(got)]) {
		t.Fatalf("%v: % x from % x", m.Command, got, m.body)
	}
}

func (a *access) encoded() []byte {
	return le.AppendUint32(le.AppendUint32(le.AppendUint64(nil, a.offset), a.region), a.count)
}
