package vhostuser

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/testkit"
)

func raw(r Request, flags Flags, body ...byte) []byte {
	return append(peer.Append(nil, Header{r, flags, uint32(len(body))}), body...)
}

func u64Body(n uint64) []byte         { return le.AppendUint64(nil, n) }
func stateBody(i, num uint32) []byte  { return le.AppendUint32(le.AppendUint32(nil, i), num) }
func tableBody(r ...memRegion) []byte { return appendMemTable(nil, r) }
func singleBody(r memRegion) []byte   { return peer.Append(nil, singleRegion{memRegion: r}) }

func zeros(n int) []byte { return make([]byte, n) }

// at1T returns the payload of ADD_MEM_REG and REM_MEM_REG for a region at 1 TiB, where a guest has no memory.
func at1T(size, offset uint64) []byte { return singleBody(memRegion{1 << 40, size, 1 << 40, offset}) }

// attack is what a hostile frontend does on a connection with two live rings. ends is the error with which
// Serve must end, or errHungUp if it must end without one; nil: the connection must go on.
type attack struct {
	name  string
	bytes []byte
	files string
	ends  error
	says  string
	do    func(t *testing.T, g *guest, l *link)
}

var attacks = []attack{
	{name: "closes in a header", ends: io.ErrUnexpectedEOF, do: func(t *testing.T, g *guest, l *link) {
		l.write(t, g, raw(GetFeatures, Version)[:5], "")
		l.Close()
	}},
	{name: "closes in a payload", ends: io.ErrUnexpectedEOF, says: "SET_FEATURES",
		do: func(t *testing.T, g *guest, l *link) {
			l.write(t, g, raw(SetFeatures, Version, 1, 2, 3, 4, 5, 6, 7, 8)[:15], "")
			l.Close()
		}},
	{name: "closes before a payload with descriptors", ends: io.ErrUnexpectedEOF, says: "ADD_MEM_REG",
		do: func(t *testing.T, g *guest, l *link) {
			l.write(t, g, raw(AddMemReg, Version, at1T(4096, 0)...)[:headerLen], "guest")
			l.Close()
		}},
	{"sends nonsense", []byte("GET / HTTP/1.1\r\n\r\n"), "", ErrBadMessage, "version 3", nil},
	{"has version 0", raw(GetFeatures, 0), "", ErrBadMessage, "version 0", nil},
	{"has version 2", raw(GetFeatures, 2), "", ErrBadMessage, "version 2", nil},
	{"sends a reply", raw(GetFeatures, Version|FlagReply), "", ErrBadMessage, "a reply", nil},
	{"sends request 0", raw(0, Version), "", ErrUnsupported, "request 0: unknown", nil},
	{"sends an unknown request", raw(200, Version), "", ErrUnsupported, "request 200: unknown", nil},
	{"sends the last request", raw(1<<32-1, Version), "", ErrUnsupported, "request 4294967295", nil},
	{"sends 4 GiB", []byte{2, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255}, "", ErrBadMessage,
		"payload of 4294967295 bytes", nil},
	{"sends a long payload", raw(GetFeatures, Version, 1), "", ErrBadMessage, "payload of 1 bytes", nil},
	{"sends a short payload", raw(SetVringAddr, Version, zeros(39)...), "", ErrBadMessage, "39", nil},
	{"migrates", raw(SetLogBase, Version, zeros(16)...), "", ErrUnsupported, "migration", nil},
	{"migrates with a descriptor", raw(SetLogBase, Version|FlagNeedReply, zeros(16)...), "event", ErrUnsupported,
		"migration", nil},
	{"logs", raw(SetLogFD, Version), "event", ErrUnsupported, "migration", nil},
	{"starts postcopy", raw(PostcopyAdvise, Version), "", ErrUnsupported, "postcopy", nil},
	{"tracks inflight", raw(GetInflightFD, Version, zeros(24)...), "", ErrUnsupported, "inflight", nil},
	{"translates", raw(IOTLBMsg, Version|FlagNeedReply, zeros(32)...), "", ErrUnsupported, "iommu_platform", nil},

	{"descriptor with a GET", raw(GetFeatures, Version), "event", ErrBadMessage, "1 descriptors", nil},
	{"eight descriptors with SET_OWNER", raw(SetOwner, Version), strings.Repeat("event ", 8), ErrBadMessage,
		"8 descriptors", nil},
	{"two descriptors with a kick", raw(SetVringKick, Version, u64Body(0)...), "event event", ErrBadMessage,
		"2 descriptors", nil},
	{"more descriptors than fit", raw(SetVringKick, Version, u64Body(0)...), strings.Repeat("event ", 9), ErrBadMessage,
		"more than 8", nil},
	{"most descriptors", raw(SetMemTable, Version, tableBody()...), strings.Repeat("guest ", 253), ErrBadMessage,
		"more than 8", nil}, // 253 is the kernel's SCM_MAX_FD
	{name: "descriptors with the rest of a header", ends: ErrBadMessage, says: "in the middle",
		do: func(t *testing.T, g *guest, l *link) {
			b := raw(SetVringKick, Version, u64Body(0)...)
			l.write(t, g, b[:3], "")
			l.waitRead(t) // otherwise one read could take both parts
			l.write(t, g, b[3:], "event")
		}},
	{name: "descriptors with a payload", ends: ErrBadMessage, says: "in the middle",
		do: func(t *testing.T, g *guest, l *link) {
			b := raw(SetVringKick, Version, u64Body(0)...)
			l.write(t, g, b[:headerLen], "event")
			l.write(t, g, b[headerLen:], "event")
		}},
	{"ADD_MEM_REG without a descriptor", raw(AddMemReg, Version, at1T(4096, 0)...), "", ErrBadMessage,
		"0 descriptors", nil},
	{"kick without its descriptor", raw(SetVringKick, Version, u64Body(0)...), "", ErrBadMessage,
		"0 descriptors, not 1", nil},
	{"kick with one too many", raw(SetVringKick, Version, u64Body(vringNoFD)...), "event", ErrBadMessage,
		"1 descriptors, not 0", nil},
	{"call that is a socket", raw(SetVringCall, Version, u64Body(1)...), "socket", ErrBadMessage, "not an eventfd", nil},
	{"call that is memory", raw(SetVringCall, Version, u64Body(1)...), "guest", ErrBadMessage, "not an eventfd", nil},

	{"features never offered", raw(SetFeatures, Version, u64Body(1<<34|1<<26)...), "", ErrBadMessage,
		"LOG_ALL|RING_PACKED was not offered: take only what GET_FEATURES answers", nil},
	{"protocol features never offered", raw(SetProtocolFeatures, Version, u64Body(1<<8)...), "", ErrBadMessage,
		"PAGEFAULT was not offered", nil},
	{"ring beyond the last", raw(SetVringNum, Version, stateBody(4, 64)...), "", ErrBadMessage, "ring 4 of 4", nil},
	{"ring of a huge index", raw(GetVringBase, Version, stateBody(1<<31, 0)...), "", ErrBadMessage,
		"ring 2147483648", nil},
	{"kick of ring 255", raw(SetVringKick, Version, u64Body(255|vringNoFD)...), "", ErrBadMessage, "ring 255", nil},
	{"ring of no size", raw(SetVringNum, Version, stateBody(0, 0)...), "", ErrBadMessage, "0 descriptors", nil},
	{"ring of 32769", raw(SetVringNum, Version, stateBody(0, 32769)...), "", ErrBadMessage, "32769", nil},
	{"base beyond 16 bits", raw(SetVringBase, Version, stateBody(0, 1<<16)...), "", ErrBadMessage, "0x10000", nil},
	{"enable 2", raw(SetVringEnable, Version, stateBody(0, 2)...), "", ErrBadMessage, "not 0 or 1", nil},
	{"status beyond a byte", raw(SetStatus, Version, u64Body(256)...), "", ErrBadMessage, "not a byte", nil},
	{"configuration of another length", raw(GetConfig, Version, append(stateBody(0, 5), 0, 0, 0, 0, 1, 2)...), "",
		ErrBadMessage, "5 bytes of configuration in 2", nil},
	{name: "answered and ended", ends: ErrBadMessage, says: "ring 9", do: func(t *testing.T, _ *guest, l *link) {
		wantRefused(t, "SET_VRING_NUM", l.command(SetVringNum, stateBody(9, 64)))
	}},

	{"table of 9 regions", raw(SetMemTable, Version, append(stateBody(9, 0), zeros(8*memRegionLen)...)...), "",
		ErrBadMessage, "9 regions", nil},
	{"table of 4 billion regions", raw(SetMemTable, Version, stateBody(1<<32-1, 0)...), "", ErrBadMessage, "regions", nil},
	{"table with less than it says", raw(SetMemTable, Version, append(stateBody(2, 0), zeros(memRegionLen)...)...), "",
		ErrBadMessage, "2 regions in 32 bytes", nil},
	{"table with too few descriptors", raw(SetMemTable, Version, tableBody(onePage, onePage)...), "guest",
		ErrBadMessage, "2 regions with 1 descriptors", nil},
	{"empty region", raw(SetMemTable, Version, tableBody(memRegion{})...), "guest", ErrBadMessage, "empty", nil},
	{"region that wraps", raw(AddMemReg, Version, singleBody(memRegion{1<<64 - 4096, 8192, userBase, 0})...), "guest",
		ErrBadMessage, "beyond the address space", nil},
	{"user addresses that wrap", raw(AddMemReg, Version, singleBody(memRegion{1 << 40, 8192, 1<<64 - 1, 0})...), "guest",
		ErrBadMessage, "user address", nil},
	{"offset that wraps", raw(AddMemReg, Version, at1T(8192, 1<<64-8)...), "guest", ErrBadMessage, "mmap offset", nil},
	{"memory refused without REPLY_ACK", raw(AddMemReg, Version, at1T(2*guestSize, 0)...), "guest", ErrMemory,
		"share=on", nil},
	{"region of a byte without REPLY_ACK", raw(AddMemReg, Version, at1T(1, 0)...), "guest", ErrMemory,
		"region at 0x10000000000: 0x1 bytes from mmap offset 0x0: not whole pages of 4096 bytes", nil},
	{"table with half a page without REPLY_ACK", raw(SetMemTable, Version,
		tableBody(onePage, memRegion{8192, 4096, userBase + 8192, 2048})...), "guest guest", ErrMemory,
		"SET_MEM_TABLE: 1: region at 0x2000: 0x1000 bytes from mmap offset 0x800: not whole pages", nil},

	{name: "REM_MEM_REG with a descriptor", do: func(t *testing.T, g *guest, l *link) { // the Backend closes it
		must(t, l.AddMemory(g.fd, 1<<40, 1<<40, 4096, 0))
		must(t, l.command(RemMemReg, at1T(4096, 99), g.fd))
	}},
	{name: "ring outside the memory", do: func(t *testing.T, g *guest, l *link) {
		for _, addr := range []uint64{0, userBase - 1, userBase + guestSize, userBase + guestSize - 2047, 1<<64 - 1} {
			must(t, l.SetVringAddr(2, addr, userBase, userBase))
			must(t, l.vringState(SetVringNum, 2, 128))
			wantRefused(t, fmt.Sprintf("ring at %#x", addr), l.SetVringKick(2, -1))
			_, err := l.GetVringBase(2)
			must(t, err)
		}
	}},
	{name: "refusals without end", do: func(t *testing.T, g *guest, l *link) {
		for range 1000 {
			wantRefused(t, "MTU 1", l.SetMTU(1))
		}
	}},
	{name: "the same kick a hundred times", do: func(t *testing.T, g *guest, l *link) {
		fd := eventfd(t)
		for range 100 {
			must(t, l.SetVringKick(0, fd))
			must(t, l.SetVringCall(0, fd))
			must(t, l.SetVringErr(3, fd))
			must(t, l.command(SetBackendReqFD, nil, fd))
		}
	}},
	{name: "one byte at a time", do: func(t *testing.T, g *guest, l *link) {
		b := raw(SetVringCall, Version, u64Body(1)...)
		l.write(t, g, b[:1], "event")
		for _, c := range b[1:] {
			l.write(t, g, []byte{c}, "")
		}
	}},
	{name: "many messages in one write", bytes: bytes.Repeat(raw(SetVringCall, Version, u64Body(1|vringNoFD)...), 100)},
	{name: "hangs up", ends: errHungUp, do: func(t *testing.T, _ *guest, l *link) { l.Close() }},
	{name: "hangs up with answers unread", ends: errHungUp, do: func(t *testing.T, g *guest, l *link) {
		for range 10 {
			l.write(t, g, raw(GetFeatures, Version), "")
		}
		l.Close()
	}},
}

// refusals are requests with need_reply that must be refused without an end of the connection.
var refusals = []struct {
	name    string
	request Request
	body    []byte
	files   string
}{
	{"region beyond its file", AddMemReg, at1T(8192, guestSize-4096), "guest"},
	{"region of 2^64-1 bytes", AddMemReg, singleBody(memRegion{0, 1<<64 - 1, 0, 0}), "guest"},
	{"region of all pages", AddMemReg, singleBody(memRegion{0, 1<<64 - 4096, 0, 0}), "guest"},
	{"region that overlaps", AddMemReg, singleBody(memRegion{guestSize - 4096, 8192, 1 << 40, 0}), "guest"},
	{"table that overlaps itself", SetMemTable,
		tableBody(memRegion{0, 8192, userBase, 0}, memRegion{4096, 8192, userBase + 8192, 0}), "guest guest"},
	{"region of a byte", AddMemReg, at1T(1, 0), "guest"},
	{"region of a page and a byte", AddMemReg, at1T(4097, 0), "guest"},
	{"region that begins in a page", AddMemReg, singleBody(memRegion{1<<40 + 2048, 4096, 1 << 40, 0}), "guest"},
	{"region from within a page of its file", AddMemReg, at1T(4096, 16), "guest"},
	{"table with a region of a byte", SetMemTable,
		tableBody(memRegion{0, guestSize, userBase, 0}, memRegion{1 << 40, 1, 1 << 40, 0}), "guest guest"},
	{"region never added", RemMemReg, singleBody(memRegion{0, guestSize, userBase + 1, 0}), ""},
	{"memory that is an eventfd", AddMemReg, at1T(4096, 0), "event"},
	{"memory that is a device", AddMemReg, at1T(4096, 0), "device"},
	{"memory that is read-only", AddMemReg, at1T(4096, 0), "read-only"},
	{"memory that is empty", AddMemReg, at1T(4096, 0), "empty"},
	{"dirty logging", SetVringAddr, peer.Append(nil, vringAddr{Flags: vringLog}), ""},
}

// onePage is the first page of a guest.
var onePage = memRegion{0, 4096, userBase, 0}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	testkit.ErrorIs(t, err, ErrRefused, "%s", what)
}

// files returns a descriptor for each word in kinds: g's memory for "guest", else a new one, closed at the end of the
// test.
func (g *guest) files(t *testing.T, kinds string) (fds []int) {
	t.Helper()
	open := func(name string, mode int) int {
		f, err := os.OpenFile(name, mode, 0)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return int(f.Fd())
	}
	for _, kind := range strings.Fields(kinds) {
		fd := g.fd
		switch kind {
		case "guest":
		case "event":
			fd = eventfd(t)
		case "empty":
			fd = memfd(t, 0)
		case "device":
			fd = open("/dev/zero", os.O_RDWR)
		case "read-only":
			name := filepath.Join(t.TempDir(), "ram")
			must(t, os.WriteFile(name, zeros(4096), 0o600))
			fd = open(name, os.O_RDONLY)
		case "socket":
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			must(t, err)
			t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
			fd = pair[0]
		default:
			t.Fatal(kind)
		}
		fds = append(fds, fd)
	}
	return fds
}

func (l *link) write(t *testing.T, g *guest, b []byte, files string) {
	t.Helper()
	must(t, l.conn.sock.WriteFDs(b, g.files(t, files)))
}

// waitRead returns when the backend has read all bytes that l has written.
func (l *link) waitRead(t *testing.T) {
	t.Helper()
	raw, err := l.sock.SyscallConn()
	must(t, err)
	for left := 1; left > 0; {
		must(t, raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
		must(t, err)
		runtime.Gosched()
	}
}

// errHungUp stands, in attack.ends, for an end of Serve without an error.
var errHungUp = errors.New("hung up")

// After each attack the host serves another connection, and a connection to another host still works.
//
// Invariant: vhostuser: A hostile frontend ends its own connection at most, and leaves nothing behind.
func TestHostileFrontends(t *testing.T) {
	all := attacks
	for _, r := range refusals {
		all = append(all, attack{name: r.name, do: func(t *testing.T, g *guest, l *link) {
			wantRefused(t, r.name, l.command(r.request, r.body, g.files(t, r.files)...))
		}})
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			bystander, other, b := serving(t)
			other.start(b, 2)
			h, g := newHost(t), newGuest(t)
			l := h.connect()
			g.start(l, 2)
			if l.write(t, g, a.bytes, a.files); a.do != nil {
				a.do(t, g, l)
			}
			if a.ends == nil {
				testkit.Equal(t, "live queues", h.liveQueues(), 2)
				h.works(l)
				must(t, l.HangUp())
			} else if err := l.Wait(); a.ends == errHungUp && err != nil || a.ends != errHungUp &&
				(!errors.Is(err, a.ends) || !strings.Contains(err.Error(), a.says)) {
				t.Errorf("Serve: %v\nwant %v with %q", err, a.ends, a.says)
			}
			h.servesAnother()
			bystander.works(b)
		})
	}
}

// The answers fill the socket and Serve blocks in a write, which the end of its context ends.
func TestHostileFrontendDoesNotRead(t *testing.T) {
	_, g, l := serving(t)
	g.start(l, 2)
	var flood []byte
	for range 1000 {
		flood = append(flood, raw(GetFeatures, Version)...)
	}
	stuck := make(chan error, 1)
	l.Frontend.SetTimeout(0)
	l.setDeadline()
	go func() {
		for {
			if err := l.conn.sock.WriteFDs(flood, nil); err != nil {
				stuck <- err
				return
			}
		}
	}()
	// When the frontend's own writes block too, Serve has stopped reading, or will soon.
	raw, err := l.sock.SyscallConn()
	must(t, err)
	for full := false; !full; {
		must(t, raw.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			n, err := unix.Poll(p, 0)
			full = n == 0 && err == nil
		}))
	}
	l.Stop()
	if err := <-stuck; err == nil {
		t.Error("the flood ended well")
	}
}

// Requests, known and unknown, have right and wrong sizes and numbers of descriptors. Serve ends without an error, or
// with ErrBadMessage, ErrUnsupported or ErrMemory.
//
// Invariant: vhostuser: A hostile frontend ends its own connection at most, and leaves nothing behind.
func TestHostileShapes(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	fd := eventfd(t)
	for r := Request(0); r <= GetShmemConfig+1; r++ {
		for _, size := range []int{0, 1, 7, 8, 9, 12, 39, 40, 41, 268, 269} {
			for _, fds := range [][]int{nil, {fd}, {fd, fd}} {
				l := h.connect()
				must(t, l.conn.sock.WriteFDs(raw(r, Version|FlagNeedReply, zeros(size)...), fds))
				must(t, l.sock.CloseWrite())
				err := l.Wait()
				if err != nil && !errors.Is(err, ErrBadMessage) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrMemory) {
					t.Errorf("%v, %d bytes, %d descriptors: %v", r, size, len(fds), err)
				}
				l.Close()
			}
		}
	}
	h.servesAnother()
}
