package nvmetcp

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// PDUs are decoded from, or encoded to, bytes that Linux 7.2 sends.
func TestPDUsOnTheWire(t *testing.T) {
	wire := func(s string) []byte { return testkit.Must(hex.DecodeString(strings.ReplaceAll(s, " ", "")))(t) }
	var resp icResp
	resp.decode((*[icLen]byte)(append(wire("01008000 80000000 0000 00 00 00004000"), make([]byte, icLen)...)))
	testkit.Equal(t, "ICResp", resp, icResp{common: common{Type: typeICResp, HLen: 128, PLen: 128}, MaxH2C: 4 << 20})
	var p transfer
	p.decode((*[headLen]byte)(wire("09001800 18000000 0920 0100 00000000 00000200 00000000")))
	testkit.Equal(t, "R2T", p, transfer{common: common{Type: typeR2T, HLen: 24, PLen: 24}, CID: 0x2009, Tag: 1,
		Len: 131072})
	testkit.OK(t, p.check())
	var b [headLen]byte
	p = transfer{common: common{Type: typeH2CData, Flags: flagLast, HLen: 24, PDO: 24, PLen: 24 + 131072}, CID: 0x2009,
		Tag: 1, Len: 131072}
	p.encode(&b)
	if want := wire("06041818 18000200 0920 0100 00000000 00000200 00000000"); !bytes.Equal(b[:], want) {
		t.Errorf("H2CData % x, want % x", b, want)
	}
	var r response
	r.decode((*[headLen]byte)(wire("05001800 18000000 0000000000000000 0000 0000 0300 0cc0")))
	testkit.Equal(t, "status", r.Status, 0x6006)
	testkit.Equal(t, "status", r.Status.say(statuses), "generic status 0x06, internal error, do not retry (0x6006)")
	q := queue{inCapsule: 16 << 10, commandPDO: 72, nsid: 1, info: &block.Info{BlockSize: 512}}
	s := sender{q: &q}
	if !s.command(&job{cid: 3, write: true, lba: 5, len: 4096}) || s.command(&job{cid: 4, lba: 1 << 32, len: 131072}) {
		t.Error("which data is in a capsule")
	}
	want := wire("04004848 48100000" +
		"01400300 01000000" + strings.Repeat("00", 16) + "0000000000000000 00100000 000000 01" +
		"0500000000000000 0700 0000" + strings.Repeat("00", 12) +
		"04004800 48000000" + "02400400 01000000" + strings.Repeat("00", 16) + "0000000000000000 00000200 000000 5a" +
		"0000000001000000 ff00 0000" + strings.Repeat("00", 12))
	if !bytes.Equal(s.burst, want) {
		t.Errorf("commands\n% x, want\n% x", s.burst, want)
	}
}

// Encoding a decoded header gives the same bytes, except that reserved bits become 0.
func FuzzHead(f *testing.F) {
	for _, s := range []string{"0704181818000200", "0900180018000000", "0500180018000000", "0300180098000000",
		"07ff18ff00000000"} {
		b, _ := hex.DecodeString(s)
		f.Add(append(b, make([]byte, headLen)...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < headLen {
			return
		}
		in := [headLen]byte(data)
		same := func(what string, out [headLen]byte, reserved ...int) {
			want := in
			for _, i := range reserved {
				want[i] = 0
			}
			if out != want {
				t.Errorf("%s: % x became % x", what, want, out)
			}
		}
		var out [headLen]byte
		var p transfer
		p.decode(&in)
		p.encode(&out)
		same("transfer", out, 20, 21, 22, 23)
		var r response
		r.decode(&in)
		r.encode(&out)
		out[22] |= in[22] & 1 // the phase tag, reserved
		same("response", out)
		var e termReq
		e.decode(&in)
		e.encode(&out)
		same("termination", out, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
		if e.say(data[headLen:]) == "" || r.Status.say(statuses) == "" || connectFault(r.Result) == "" {
			t.Error("nothing is said")
		}
		switch err := p.check(); {
		case err != nil:
			testkit.ErrorIs(t, err, block.ErrProtocol)
		case p.HLen != headLen || p.PLen < headLen || p.Type == typeC2HData && p.PLen <= uint32(p.PDO),
			p.Type == typeC2HTermReq && p.PLen > maxTermLen:
			t.Errorf("%+v passes", p)
		}
	})
}

// tape is a connection whose whole stream, b, has arrived; the stream then ends.
type tape struct {
	devmem.Conn
	b    []byte
	call int // most bytes that a call of RecvDevmem returns
}

func (c *tape) RecvDevmem(_ []devmem.Frag, linear []byte, _ devmem.RecvFlags) (int, int, int, error) {
	if len(c.b) == 0 {
		return 0, 0, 0, io.EOF
	}
	n := copy(linear[:min(len(linear), c.call)], c.b)
	c.b = c.b[n:]
	return n, 0, n, nil
}

// heads returns the right headers, and reads several at a time if their distances follow a pattern.
func TestHeadsAreLookedAtTogether(t *testing.T) {
	head := func(b []byte, p transfer) []byte {
		var h [headLen]byte
		p.HLen = headLen
		p.encode(&h)
		return append(append(b, h[:]...), make([]byte, int(p.PLen)-headLen)...)
	}
	data := func(n int, flags uint8) transfer {
		return transfer{common: common{Type: typeC2HData, Flags: flags, PDO: headLen, PLen: uint32(headLen + n)}}
	}
	resp := transfer{common: common{Type: typeCapsuleResp, PLen: headLen}}
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name  string
		next  func(i int) []transfer
		looks uint64 // most calls of look for 6400 headers
		spare uint64 // most bytes read beyond the headers
	}{
		{"reads", func(int) []transfer { return []transfer{data(512, flagLast|flagSuccess)} }, 120, 0},
		{"reads and responses", func(int) []transfer { return []transfer{data(512, flagLast), resp} }, 250, 0},
		{"responses", func(int) []transfer { return []transfer{resp} }, 120, 0},
		{"lengths that change", func(i int) []transfer {
			return []transfer{data(512+8*(i/200%3), flagLast|flagSuccess)}
		}, 900, 6400 / 200 * maxWindow * headLen},
		{"any", func(int) []transfer {
			return []transfer{data(4*(1+random.IntN(3)), uint8(random.IntN(4))<<2), resp}[random.IntN(2):]
		}, 6400, 6400 * headLen},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want []transfer
			var b []byte
			for i := 0; len(want) < 6400; i++ {
				for _, p := range c.next(i) {
					p.CID, p.HLen = uint16(len(want)), headLen
					want = append(want, p)
					b = head(b, p)
				}
			}
			s := devmem.NewStream(&tape{b: b, call: 64 << 10}, nil, nil)
			h := heads{stream: s, device: true, window: 1}
			for i, w := range want {
				var b [headLen]byte
				var p transfer
				testkit.OK(t, errors.Join(s.Fill(t.Context(), headLen), h.next(context.Background(), &b)))
				if p.decode(&b); p != w {
					t.Fatalf("head %d: %+v, want %+v", i, p, w)
				}
				h.learn(&p.common)
				testkit.OK(t, s.Fill(t.Context(), int(p.PLen)))
				testkit.OK(t, s.Skip(uint64(p.PLen)))
				h.took(uint64(p.PLen))
			}
			n := uint64(len(want))
			if h.stats.Looks > c.looks || h.stats.Looked > n*headLen+c.spare || h.stats.Messages != n {
				t.Errorf("%d heads: %+v", n, h.stats)
			}
		})
	}
}

func TestErrnoOfStatuses(t *testing.T) {
	for st, want := range map[status]syscall.Errno{0x4002: syscall.EINVAL, 0x0001: syscall.EOPNOTSUPP,
		0x0281: syscall.EIO,
		0x0371: syscall.ECANCELED, 0x07ff: syscall.EIO} {
		testkit.ErrorIs(t, &commandError{"Identify", st, 0}, want)
		testkit.ErrorIs(t, &commandError{connectName, st, 0}, want)
	}
	testkit.ErrorIs(t, &commandError{connectName, 0x0184, 0}, syscall.EACCES)
	testkit.ErrorSays(t, &commandError{connectName, 0x4182, 1<<16 | 256}, "SUBNQN: there is no such subsystem")
	testkit.ErrorSays(t, &commandError{connectName, 0x4182, 44}, "SQSIZE")
	testkit.ErrorSays(t, &commandError{connectName, 0x4182, 1<<16 | 3}, "byte 3 of the data")
}
