package nbd

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/internal/testkit"
)

// script is a connection whose other end sends a fixed stream.
type script struct {
	io.Reader
	sent bytes.Buffer
}

func (s *script) Write(b []byte) (int, error) { return s.sent.Write(b) }

func says(parts ...[]byte) *script { return &script{Reader: bytes.NewReader(bytes.Join(parts, nil))} }

func info(typ uint16, data ...byte) []byte {
	return optMessage(7, 3, append(binary.BigEndian.AppendUint16(nil, typ), data...))
}

var (
	goodExport = info(0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1) // 64 KiB, NBD_FLAG_HAS_FLAGS
	goodAck    = optMessage(7, 1, nil)
)

func sizes(minimum, maximum uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, minimum)
	b = binary.BigEndian.AppendUint32(b, 4096)
	return info(3, binary.BigEndian.AppendUint32(b, maximum)...)
}

// A handshake sends the expected bytes and reads none beyond its end.
func TestHandshake(t *testing.T) {
	for _, flags := range []uint16{1, 3, 0xff03} {
		s := says(greeting(flags), sizes(512, 65536), info(1, []byte("name")...), info(2, []byte("what")...), info(77,
			1, 2, 3),
			goodExport, goodAck, []byte("what comes next"))
		e := testkit.Must(handshake(s, "disk"))(t)
		want := export{size: 65536, flags: 1, minBlock: 512, maxPayload: 65536, name: "name", description: "what"}
		testkit.Equal(t, "export", e, want)
		testkit.Equal(t, "what was said", s.sent.String(), "\x00\x00\x00"+string(rune(flags&3))+
			"IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x10\x00\x00\x00\x04disk\x00\x03\x00\x03\x00\x01\x00\x02")
		testkit.Equal(t, "what is left", string(testkit.Must(io.ReadAll(s))(t)), "what comes next")
	}
}

// Invariant: nbd: A handshake that cannot succeed is refused, and the error names the reason.
func TestHandshakeIsRefused(t *testing.T) {
	long := strings.Repeat("x", 5000)
	refusedBy := func(n uint32, text string) [][]byte {
		return [][]byte{greeting(3), optMessage(7, 1<<31+n, []byte(text))}
	}
	for name, c := range map[string]struct {
		server [][]byte
		target error
		says   string
	}{
		"nobody":           {nil, io.ErrUnexpectedEOF, "the greeting"},
		"a short greeting": {[][]byte{greeting(3)[:17]}, io.ErrUnexpectedEOF, "the greeting"},
		"another protocol": {[][]byte{[]byte("SSH-2.0-OpenSSH_9.2p1\r\n")}, block.ErrProtocol,
			`begins with "SSH-2.0-": no NBD server`},
		"oldstyle": {[][]byte{[]byte("NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53"), make([]byte, 136)},
			syscall.EOPNOTSUPP,
			"oldstyle negotiation"},
		"no IHAVEOPT": {[][]byte{[]byte("NBDMAGICIHAVENOT\x00\x03")}, block.ErrProtocol, "not IHAVEOPT"},
		"newstyle, not fixed": {[][]byte{greeting(2)}, syscall.EOPNOTSUPP,
			"handshake flags 0x2: the server's newstyle negotiation is not fixed"},
		"unsupported": {refusedBy(1, ""), syscall.EOPNOTSUPP,
			"NBD_REP_ERR_UNSUP: the server does not know NBD_OPT_GO"},
		"policy": {refusedBy(2, "go away"), syscall.EPERM,
			`NBD_REP_ERR_POLICY: the server's policy forbids it; it says "go away"`},
		"invalid":  {refusedBy(3, ""), syscall.EINVAL, "NBD_REP_ERR_INVALID"},
		"platform": {refusedBy(4, ""), syscall.EOPNOTSUPP, "NBD_REP_ERR_PLATFORM"},
		"TLS": {refusedBy(5, ""), syscall.EOPNOTSUPP,
			"NBD_REP_ERR_TLS_REQD: a record of TLS cannot be decrypted in device memory"},
		"unknown": {refusedBy(6, "no \x1b[31mdisk\xff"+long), syscall.ENOENT,
			`export "disk": NBD_REP_ERR_UNKNOWN: there is no such export; it says "no .[31mdisk.xxx`},
		"shutdown": {refusedBy(7, ""), syscall.ESHUTDOWN, "NBD_REP_ERR_SHUTDOWN"},
		"block size": {refusedBy(8, ""), block.ErrProtocol,
			"NBD_REP_ERR_BLOCK_SIZE_REQD, though block sizes were asked for"},
		"too big":          {refusedBy(9, ""), syscall.EMSGSIZE, "NBD_REP_ERR_TOO_BIG"},
		"extended headers": {refusedBy(10, ""), syscall.EOPNOTSUPP, "NBD_REP_ERR_EXT_HEADER_REQD"},
		"another error":    {refusedBy(999, ""), syscall.EPROTO, "an error of type 0x800003e7, which is none of NBD's"},
		"no magic": {[][]byte{greeting(3), append([]byte{9}, goodAck[1:]...)}, block.ErrProtocol,
			"not 0x3e889045565a9"},
		"another option": {[][]byte{greeting(3), optMessage(6, 1, nil)}, block.ErrProtocol,
			"it is one to option 6"},
		"another reply": {[][]byte{greeting(3), optMessage(7, 2, nil)}, block.ErrProtocol,
			"a reply of type 2 to NBD_OPT_GO"},
		"a long reply": {[][]byte{greeting(3), optMessage(7, 3, nil)[:16], {0, 1, 0, 1}}, block.ErrProtocol,
			"it has 65537 bytes, 65536 at most"},
		"an end in a reply": {[][]byte{greeting(3), goodExport[:25]}, io.ErrUnexpectedEOF, "a reply to NBD_OPT_GO"},
		"an end of replies": {[][]byte{greeting(3), goodExport}, io.ErrUnexpectedEOF, "a reply to NBD_OPT_GO"},
		"no export": {[][]byte{greeting(3), sizes(1, 4096), goodAck}, block.ErrProtocol,
			"NBD_REP_ACK without NBD_INFO_EXPORT"},
		"ACK with data": {[][]byte{greeting(3), goodExport, optMessage(7, 1, []byte{1})}, block.ErrProtocol,
			"NBD_REP_ACK has 1 bytes"},
		"a short info": {[][]byte{greeting(3), optMessage(7, 3, []byte{0})}, block.ErrProtocol,
			"NBD_REP_INFO of 1 bytes"},
		"a short export": {[][]byte{greeting(3), info(0, 1, 2, 3), goodAck}, block.ErrProtocol,
			"NBD_INFO_EXPORT of 5 bytes, and not 12"},
		"a long export": {[][]byte{greeting(3), info(0, make([]byte, 11)...), goodAck}, block.ErrProtocol,
			"NBD_INFO_EXPORT of 13 bytes"},
		"a short block size": {[][]byte{greeting(3), info(3, 0), goodAck}, block.ErrProtocol,
			"NBD_INFO_BLOCK_SIZE of 3 bytes, and not 14"},
		"blocks of 0": {[][]byte{greeting(3), sizes(0, 4096), goodAck}, block.ErrProtocol, "blocks of 0 bytes"},
		"blocks of 513": {[][]byte{greeting(3), sizes(513, 4096), goodAck}, block.ErrProtocol,
			"blocks of 513 bytes"},
		"blocks of 128 KiB": {[][]byte{greeting(3), sizes(128<<10, 1<<20), goodAck}, block.ErrProtocol,
			"blocks of 131072 bytes"},
		"no whole block": {[][]byte{greeting(3), sizes(4096, 4095), goodAck}, block.ErrProtocol,
			"payload of up to 4095"},
		"no flags": {[][]byte{greeting(3), info(0, make([]byte, 10)...), goodAck}, block.ErrProtocol,
			"without NBD_FLAG_HAS_FLAGS"},
		"no end of it": {append([][]byte{greeting(3)}, bytes.Repeat(goodExport, 65)), block.ErrProtocol,
			"more than 64 replies"},
	} {
		t.Run(name, func(t *testing.T) {
			s := says(c.server...)
			_, err := handshake(s, "disk")
			testkit.ErrorIs(t, err, c.target)
			testkit.ErrorSays(t, err, c.says)
			if len(err.Error()) > 600 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			abort := strings.HasSuffix(s.sent.String(), "IHAVEOPT\x00\x00\x00\x02\x00\x00\x00\x00")
			if refused := strings.Contains(err.Error(),
				"NBD_REP_ERR_"); refused && !abort || !refused && abort && name != "another error" {
				t.Errorf("the client ended it with %q", s.sent.String())
			}
		})
	}
	_, err := handshake(says(), long)
	testkit.ErrorIs(t, err, syscall.EINVAL)
}

// Open reports errors of real connections, and leaks nothing.
func TestOpenIsRefused(t *testing.T) {
	s := &server{store: pattern(1 << 20)}
	r := newRig(t, s, 1<<20, 1<<20)
	r.conf.Export = "tape"
	err := testkit.Err(Open(t.Context(), r.conf))
	testkit.ErrorIs(t, err, syscall.ENOENT)
	testkit.ErrorSays(t, err, "nbd: read connection to "+s.addr.String(), `export "tape"`, `"no such export here.[2J"`)
	testkit.Eventually(t, "NBD_OPT_ABORT", func() bool { return s.get(func() int { return s.aborts }) == 1 })

	s = &server{store: pattern(1 << 20), clients: 1}
	r = newRig(t, s, 1<<20, 1<<20)
	r.conf.Timeout = 1500 * time.Millisecond
	err = testkit.Err(Open(t.Context(), r.conf))
	testkit.ErrorSays(t, err, "write connection to", "not done in 1.5s", "one client at a time can be opened read-only")

	s = &server{store: pattern(1 << 20)}
	n := 0
	s.greet = func(c net.Conn) bool {
		s.mu.Lock()
		if n++; n == 2 {
			s.store = s.store[:1<<19]
		}
		s.mu.Unlock()
		return s.shake(c)
	}
	r = newRig(t, s, 1<<20, 1<<20)
	err = testkit.Err(Open(t.Context(), r.conf))
	testkit.ErrorIs(t, err, block.ErrProtocol)
	testkit.ErrorSays(t, err,
		"the export has 524288 bytes and flags 0x105, and to the read connection 1048576 and 0x105")
	testkit.Equal(t, "bindings that are left", len(r.dev.Stats().Bindings), 0)

	nobody := testkit.Must(net.Listen("tcp", netip.AddrPortFrom(s.addr.Addr(), 0).String()))(t)
	r.conf.Server = netip.MustParseAddrPort(nobody.Addr().String())
	testkit.OK(t, nobody.Close())
	err = testkit.Err(Open(t.Context(), r.conf))
	testkit.ErrorIs(t, err, syscall.ECONNREFUSED)
	testkit.ErrorSays(t, err, "no server listens at its port")
}

// A handshake with arbitrary bytes ends, and a successful one returns an export with valid sizes.
func FuzzHandshake(f *testing.F) {
	f.Add(bytes.Join([][]byte{greeting(3), sizes(512, 65536), info(1, []byte("name")...), goodExport, goodAck}, nil))
	f.Add(bytes.Join([][]byte{greeting(3), goodExport, optMessage(7, 1<<31+6, []byte("no"))}, nil))
	f.Add([]byte("NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := says(b)
		e, err := handshake(s, "disk")
		if err != nil {
			if len(err.Error()) > 1200 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		i := e.device(1)
		if i.BlockSize == 0 || i.BlockSize&(i.BlockSize-1) != 0 || i.BlockSize > 65536 || i.MaxTransfer == 0 ||
			i.MaxTransfer > 32<<20 || i.MaxTransfer%i.BlockSize != 0 || len(e.name)+len(e.description) > 2*maxShown {
			t.Errorf("%+v, %+v", e, i)
		}
	})
}
