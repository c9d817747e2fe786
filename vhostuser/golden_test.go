package vhostuser

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

// TestGoldenRequests checks the bytes of a Frontend's requests, which have the layout of QEMU's struct VhostUserMsg.
func TestGoldenRequests(t *testing.T) {
	testkit.CheckFDs(t)
	fd := eventfd(t)
	const ok = "0000000000000000"
	for _, c := range []struct {
		name string
		do   func(f *Frontend) error
		want string
		fds  int
		ans  string // payload of the answer
	}{
		{"GET_FEATURES", func(f *Frontend) error { _, err := f.queryU64(GetFeatures); return err },
			"01000000 01000000 00000000", 0, "2080000070010000"},
		{"SET_FEATURES", func(f *Frontend) error { return f.command(SetFeatures, u64Body(0x170008020)) },
			"02000000 09000000 08000000 2080007001000000", 0, ok},
		{"SET_OWNER", func(f *Frontend) error { return f.command(SetOwner, nil) }, "03000000 09000000 00000000", 0, ok},
		{"RESET_OWNER", func(f *Frontend) error { return f.command(ResetOwner, nil) }, "04000000 09000000 00000000", 0, ok},
		{"SET_MEM_TABLE", func(f *Frontend) error {
			return f.SetMemTable([]MemRegion{{fd, 0, 0x7f0000000000, 0xa0000, 0}, {fd, 0x100000000, 0x7f0080000000, 0x40000000,
				0x80000000}})
		}, "05000000 09000000 48000000 02000000 00000000" +
			"0000000000000000 00000a0000000000 00000000007f0000 0000000000000000" +
			"0000000001000000 0000004000000000 00000080007f0000 0000008000000000", 2, ok},
		{"SET_VRING_NUM", func(f *Frontend) error { return f.vringState(SetVringNum, 3, 1024) },
			"08000000 09000000 08000000 03000000 00040000", 0, ok},
		{"SET_VRING_ADDR", func(f *Frontend) error {
			return f.SetVringAddr(1, 0x7f0000001000, 0x7f0000002000,
				0x7f0000003000)
		},
			"09000000 09000000 28000000 01000000 00000000 00100000007f0000 00300000007f0000 00200000007f0000 0000000000000000",
			0, ok},
		{"SET_VRING_BASE", func(f *Frontend) error { return f.vringState(SetVringBase, 2, 0xfffe) },
			"0a000000 09000000 08000000 02000000 feff0000", 0, ok},
		{"GET_VRING_BASE", func(f *Frontend) error {
			base, err := f.GetVringBase(5)
			if base != 0x1234 {
				return fmt.Errorf("base %#x", base)
			}
			return err
		}, "0b000000 01000000 08000000 05000000 00000000", 0, "0500000034120000"},
		{"SET_VRING_KICK", func(f *Frontend) error { return f.SetVringKick(255, fd) },
			"0c000000 09000000 08000000 ff00000000000000", 1, ok},
		{"SET_VRING_CALL", func(f *Frontend) error { return f.SetVringCall(2, -1) },
			"0d000000 09000000 08000000 0201000000000000", 0, ok},
		{"SET_VRING_ERR", func(f *Frontend) error { return f.SetVringErr(0, fd) },
			"0e000000 09000000 08000000 0000000000000000", 1, ok},
		{"GET_PROTOCOL_FEATURES", func(f *Frontend) error { _, err := f.queryU64(GetProtocolFeatures); return err },
			"0f000000 01000000 00000000", 0, ok},
		{"SET_PROTOCOL_FEATURES", func(f *Frontend) error {
			return f.command(SetProtocolFeatures, u64Body(uint64(allProtocol)))
		},
			"10000000 09000000 08000000 3da2010000000000", 0, ok},
		{"GET_QUEUE_NUM", func(f *Frontend) error { _, err := f.queryU64(GetQueueNum); return err },
			"11000000 01000000 00000000", 0, ok},
		{"SET_VRING_ENABLE", func(f *Frontend) error { return f.SetEnable(4, true) },
			"12000000 09000000 08000000 04000000 01000000", 0, ok},
		{"SEND_RARP", func(f *Frontend) error { return f.SendRARP([6]byte{2, 0x76, 0x6e, 0x69, 0x63, 1}) },
			"13000000 09000000 08000000 02766e6963010000", 0, ok},
		{"NET_SET_MTU", func(f *Frontend) error { return f.SetMTU(9000) }, "14000000 09000000 08000000 2823000000000000", 0,
			ok},
		{"SET_BACKEND_REQ_FD", func(f *Frontend) error { return f.command(SetBackendReqFD, nil, fd) },
			"15000000 09000000 00000000", 1, ok},
		{"GET_CONFIG", func(f *Frontend) error {
			b := make([]byte, 3)
			if err := f.GetConfig(6, b); err != nil || string(b) != "\x01\x02\x03" {
				return fmt.Errorf("% x, %w", b, err)
			}
			return nil
		}, "18000000 01000000 0f000000 06000000 03000000 00000000 000000", 0, "06000000 03000000 00000000 010203"},
		{"SET_CONFIG", func(f *Frontend) error { return f.SetConfig(6, []byte{0xaa, 0xbb}) },
			"19000000 09000000 0e000000 06000000 02000000 00000000 aabb", 0, ok},
		{"RESET_DEVICE", (*Frontend).ResetDevice, "22000000 09000000 00000000", 0, ok},
		{"GET_MAX_MEM_SLOTS", func(f *Frontend) error { _, err := f.queryU64(GetMaxMemSlots); return err },
			"24000000 01000000 00000000", 0, "fd01000000000000"},
		{"ADD_MEM_REG", func(f *Frontend) error { return f.AddMemory(fd, 0xfe000000, 0x7f0040000000, 0x1000000, 0x2000) },
			"25000000 09000000 28000000 0000000000000000 000000fe00000000 0000000100000000 00000040007f0000 0020000000000000", 1,
			ok},
		{"REM_MEM_REG", func(f *Frontend) error { return f.RemoveMemory(0xfe000000, 0x7f0040000000, 0x1000000) },
			"26000000 09000000 28000000 0000000000000000 000000fe00000000 0000000100000000 00000040007f0000 0000000000000000", 0,
			ok},
		{"SET_STATUS", func(f *Frontend) error { return f.SetStatus(0x0f) }, "27000000 09000000 08000000 0f00000000000000", 0,
			ok},
		{"GET_STATUS", func(f *Frontend) error { _, err := f.GetStatus(); return err }, "28000000 01000000 00000000", 0, ok},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, back := frontend(t)
			f.protocol = allProtocol
			result := make(chan error)
			go func() { result <- c.do(f) }()
			m := back.next(t)
			if m.Request.String() != c.name {
				t.Errorf("name %v", m.Request)
			}
			sent := raw(m.Request, m.Flags, m.body...)
			if got, want := hex.EncodeToString(sent), strings.ReplaceAll(c.want, " ", ""); got != want ||
				m.fds.Len() != c.fds {
				t.Errorf("sent    %s with %d descriptors\n want %s with %d", got, m.fds.Len(), want, c.fds)
			}
			back.write(t, raw(m.Request, Version|FlagReply, unhex(t, c.ans)...))
			must(t, <-result)
		})
	}
}

// TestGoldenReplies checks the bytes of a Backend's answers.
func TestGoldenReplies(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	copy(h.config[:], "\x02\x76\x6e\x69\x63\x01")
	l := h.connect()
	for _, c := range []struct{ name, send, want string }{
		{"GET_FEATURES", "01000000 01000000 00000000", "01000000 05000000 08000000 2080007001000000"},
		{"GET_PROTOCOL_FEATURES", "0f000000 01000000 00000000", "0f000000 05000000 08000000 3da2010000000000"},
		{"GET_QUEUE_NUM", "11000000 01000000 00000000", "11000000 05000000 08000000 0400000000000000"},
		{"GET_MAX_MEM_SLOTS", "24000000 01000000 00000000", "24000000 05000000 08000000 fd01000000000000"},
		{"GET_VRING_BASE", "0b000000 01000000 08000000 02000000 00000000", "0b000000 05000000 08000000 02000000 00000000"},
		{"GET_STATUS", "28000000 01000000 00000000", "28000000 05000000 08000000 0000000000000000"},
		{"GET_CONFIG", "18000000 01000000 12000000 00000000 06000000 00000000 000000000000",
			"18000000 05000000 12000000 00000000 06000000 00000000 02766e696301"},
		{"GET_CONFIG refused", "18000000 01000000 10000000 16000000 04000000 00000000 00000000",
			"18000000 05000000 00000000"},
		// REPLY_ACK is not negotiated yet: SET_OWNER gets no answer, the following GET_STATUS its reply.
		{"need_reply too early", "03000000 09000000 00000000 28000000 01000000 00000000",
			"28000000 05000000 08000000 0000000000000000"},
		{"SET_PROTOCOL_FEATURES", "10000000 09000000 08000000 1880010000000000",
			"10000000 05000000 08000000 0000000000000000"},
		{"acked", "03000000 09000000 00000000", "03000000 05000000 08000000 0000000000000000"},
		{"refused", "14000000 09000000 08000000 0100000000000000", "14000000 05000000 08000000 0100000000000000"},
		// GET_FEATURES gets its reply and no acknowledgement: the reply to GET_STATUS follows at once.
		{"need_reply of a GET", "01000000 09000000 00000000 28000000 09000000 00000000",
			"01000000 05000000 08000000 2080007001000000 28000000 05000000 08000000 0000000000000000"},
		// POSTCOPY_LISTEN comes last, because it ends the connection
		{"unsupported", "1d000000 09000000 00000000", "1d000000 05000000 08000000 0100000000000000"},
	} {
		must(t, l.conn.sock.WriteFDs(unhex(t, c.send), nil))
		want := unhex(t, c.want)
		got := make([]byte, len(want))
		var none scm.FDs
		if err := l.conn.readFull(got, &none, true); err != nil || string(got) != string(want) {
			t.Errorf("%s: %x, %v\nwant %x", c.name, got, err, want)
		}
	}
	peertest.WantError(t, "Serve", l.Wait(), ErrUnsupported)
}

func TestNames(t *testing.T) {
	names := [64]string{5: "MAC", 15: "MRG_RXBUF"}
	for _, c := range []struct{ got, want string }{
		{Features{testFeatures | FeatureProtocol, &names}.String(),
			"MAC|MRG_RXBUF|INDIRECT_DESC|EVENT_IDX|PROTOCOL_FEATURES|VERSION_1"},
		{Features{1<<5 | 1<<40 | 1<<63, nil}.String(), "bit5|RING_RESET|bit63"},
		{Features{}.String(), "none"},
		{(ProtocolMQ | ProtocolReplyAck | ProtocolGPAAddresses | ProtocolShmem | 1<<40).String(),
			"MQ|REPLY_ACK|GPA_ADDRESSES|SHMEM|bit40"},
		{AddMemReg.String(), "ADD_MEM_REG"},
		{PostcopyAdvise.String(), "POSTCOPY_ADVISE"},
		{Request(0).String(), "request 0"},
		{Request(4000000000).String(), "request 4000000000"},
		{(Version | FlagReply | FlagNeedReply | 0x30).String(), "v1|reply|need_reply|0x30"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	for r := GetFeatures; r <= GetShmemConfig; r++ {
		if served, why := rules[r].handle != nil, rules[r].unserved != ""; served == why || rules[r].name == "" {
			t.Errorf("%v: served %t, excuse %t", r, served, why)
		}
	}
}
