package vhostuser

import (
	"errors"
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

// attack is what a hostile frontend does on a connection with two live rings. wait, if not nil, is the error with which
// Serve must end of itself; otherwise the connection must go on.
type attack struct {
	name string
	do   func(t *testing.T, g *guest, l *link)
	ends error
	says string // part of the error
}

// raw is a message as bytes, its size that of its payload.
func raw(r Request, flags Flags, body ...byte) []byte {
	return append(peer.Append(nil, Header{r, flags, uint32(len(body))}), body...)
}

func u64Body(n uint64) []byte         { return le.AppendUint64(nil, n) }
func stateBody(i, num uint32) []byte  { return le.AppendUint32(le.AppendUint32(nil, i), num) }
func tableBody(r ...memRegion) []byte { return appendMemTable(nil, r) }
func singleBody(r memRegion) []byte   { return peer.Append(nil, singleRegion{memRegion: r}) }

// refusedBy sends a request with need_reply and wants a failure and a connection that lives.
func refusedBy(r Request, body func(g *guest) []byte, fds func(t *testing.T, g *guest) []int) func(*testing.T, *guest,
	*link) {
	return func(t *testing.T, g *guest, l *link) {
		t.Helper()
		var f []int
		if fds != nil {
			f = fds(t, g)
		}
		if err := l.command(r, body(g), f...); !errors.Is(err, ErrRefused) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

func write(b []byte) func(*testing.T, *guest, *link) {
	return func(t *testing.T, _ *guest, l *link) { must(t, l.conn.sock.WriteFDs(b, nil)) }
}

func writeFDs(b []byte, n int) func(*testing.T, *guest, *link) {
	return func(t *testing.T, _ *guest, l *link) {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = eventfd(t)
		}
		must(t, l.conn.sock.WriteFDs(b, fds))
	}
}

var attacks = []attack{
	{"closes in a header", func(t *testing.T, _ *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(GetFeatures, Version)[:5], nil))
		l.Close()
	}, io.ErrUnexpectedEOF, ""},
	{"closes in a payload", func(t *testing.T, _ *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(SetFeatures, Version, 1, 2, 3, 4, 5, 6, 7, 8)[:15], nil))
		l.Close()
	}, io.ErrUnexpectedEOF, "SET_FEATURES"},
	{"closes before a payload with descriptors", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(AddMemReg, Version, singleBody(memRegion{1 << 40, 4096, 1 << 40, 0})...)[:headerLen],
			[]int{g.fd}))
		l.Close()
	}, io.ErrUnexpectedEOF, "ADD_MEM_REG"},
	{"sends nonsense", write([]byte("GET / HTTP/1.1\r\n\r\n")), ErrBadMessage, "version 3"},
	{"has version 0", write(raw(GetFeatures, 0)), ErrBadMessage, "version 0"},
	{"has version 2", write(raw(GetFeatures, 2)), ErrBadMessage, "version 2"},
	{"sends a reply", write(raw(GetFeatures, Version|FlagReply)), ErrBadMessage, "a reply"},
	{"sends request 0", write(raw(0, Version)), ErrUnsupported, "request 0: unknown"},
	{"sends an unknown request", write(raw(200, Version)), ErrUnsupported, "request 200: unknown"},
	{"sends the last request", write(raw(1<<32-1, Version)), ErrUnsupported, "request 4294967295"},
	{"sends 4 GiB", write([]byte{2, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255}), ErrBadMessage,
		"payload of 4294967295 bytes"},
	{"sends a long payload", write(raw(GetFeatures, Version, 1)), ErrBadMessage, "payload of 1 bytes"},
	{"sends a short payload", write(raw(SetVringAddr, Version, make([]byte, 39)...)), ErrBadMessage, "39"},
	{"migrates", write(raw(SetLogBase, Version, make([]byte, 16)...)), ErrUnsupported, "migration"},
	{"migrates with a descriptor", writeFDs(raw(SetLogBase, Version|FlagNeedReply, make([]byte, 16)...), 1),
		ErrUnsupported, "migration"},
	{"logs", writeFDs(raw(SetLogFD, Version), 1), ErrUnsupported, "migration"},
	{"starts postcopy", write(raw(PostcopyAdvise, Version)), ErrUnsupported, "postcopy"},
	{"tracks inflight", write(raw(GetInflightFD, Version, make([]byte, 24)...)), ErrUnsupported, "inflight"},
	{"translates", write(raw(IOTLBMsg, Version|FlagNeedReply, make([]byte, 32)...)), ErrUnsupported, "iommu_platform"},

	{"descriptor with a GET", writeFDs(raw(GetFeatures, Version), 1), ErrBadMessage, "1 descriptors"},
	{"eight descriptors with SET_OWNER", writeFDs(raw(SetOwner, Version), 8), ErrBadMessage, "8 descriptors"},
	{"two descriptors with a kick", writeFDs(raw(SetVringKick, Version, u64Body(0)...), 2), ErrBadMessage,
		"2 descriptors"},
	{"more descriptors than fit", writeFDs(raw(SetVringKick, Version, u64Body(0)...), 9), ErrBadMessage, "more than 8"},
	{"most descriptors", func(t *testing.T, g *guest, l *link) {
		fds := make([]int, 253) // SCM_MAX_FD
		for i := range fds {
			fds[i] = g.fd
		}
		must(t, l.conn.sock.WriteFDs(raw(SetMemTable, Version, tableBody()...), fds))
	}, ErrBadMessage, "more than 8"},
	{"descriptors with the rest of a header", func(t *testing.T, g *guest, l *link) {
		b := raw(SetVringKick, Version, u64Body(0)...)
		must(t, l.conn.sock.WriteFDs(b[:3], nil))
		l.waitRead(t) // else one read takes both parts
		must(t, l.conn.sock.WriteFDs(b[3:], []int{eventfd(t)}))
	}, ErrBadMessage, "in the middle"},
	{"descriptors with a payload", func(t *testing.T, g *guest, l *link) {
		b := raw(SetVringKick, Version, u64Body(0)...)
		must(t, l.conn.sock.WriteFDs(b[:headerLen], []int{eventfd(t)}))
		must(t, l.conn.sock.WriteFDs(b[headerLen:], []int{eventfd(t)}))
	}, ErrBadMessage, "in the middle"},
	{"ADD_MEM_REG without a descriptor",
		write(raw(AddMemReg, Version, singleBody(memRegion{1 << 40, 4096, 1 << 40, 0})...)), ErrBadMessage, "0 descriptors"},
	{"kick without its descriptor", write(raw(SetVringKick, Version, u64Body(0)...)), ErrBadMessage,
		"0 descriptors, not 1"},
	{"kick with one too many", writeFDs(raw(SetVringKick, Version, u64Body(vringNoFD)...), 1), ErrBadMessage,
		"1 descriptors, not 0"},
	{"call that is a socket", func(t *testing.T, _ *guest, l *link) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		must(t, err)
		must(t, l.conn.sock.WriteFDs(raw(SetVringCall, Version, u64Body(1)...), fds[:1]))
		unix.Close(fds[0])
		unix.Close(fds[1])
	}, ErrBadMessage, "not an eventfd"},
	{"call that is memory", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(SetVringCall, Version, u64Body(1)...), []int{g.fd}))
	}, ErrBadMessage, "not an eventfd"},

	{"features never offered", write(raw(SetFeatures, Version, u64Body(1<<34|1<<26)...)), ErrBadMessage,
		"LOG_ALL|RING_PACKED was not offered"},
	{"protocol features never offered", write(raw(SetProtocolFeatures, Version, u64Body(1<<8)...)), ErrBadMessage,
		"PAGEFAULT was not offered"},
	{"ring beyond the last", write(raw(SetVringNum, Version, stateBody(4, 64)...)), ErrBadMessage, "ring 4 of 4"},
	{"ring of a huge index", write(raw(GetVringBase, Version, stateBody(1<<31, 0)...)), ErrBadMessage, "ring 2147483648"},
	{"kick of ring 255", write(raw(SetVringKick, Version, u64Body(255|vringNoFD)...)), ErrBadMessage, "ring 255"},
	{"ring of no size", write(raw(SetVringNum, Version, stateBody(0, 0)...)), ErrBadMessage, "0 descriptors"},
	{"ring of 32769", write(raw(SetVringNum, Version, stateBody(0, 32769)...)), ErrBadMessage, "32769"},
	{"base beyond 16 bits", write(raw(SetVringBase, Version, stateBody(0, 1<<16)...)), ErrBadMessage, "0x10000"},
	{"enable 2", write(raw(SetVringEnable, Version, stateBody(0, 2)...)), ErrBadMessage, "not 0 or 1"},
	{"status beyond a byte", write(raw(SetStatus, Version, u64Body(256)...)), ErrBadMessage, "not a byte"},
	{"configuration of another length", write(raw(GetConfig, Version, append(stateBody(0, 5), 0, 0, 0, 0, 1, 2)...)),
		ErrBadMessage, "5 bytes of configuration in 2"},
	{"answered and ended", func(t *testing.T, _ *guest, l *link) {
		if err := l.command(SetVringNum, stateBody(9, 64)); !errors.Is(err, ErrRefused) {
			t.Errorf("%v", err)
		}
	}, ErrBadMessage, "ring 9"},

	{"table of 9 regions", write(raw(SetMemTable, Version, append(stateBody(9, 0), make([]byte, 8*memRegionLen)...)...)),
		ErrBadMessage, "9 regions"},
	{"table of 4 billion regions", write(raw(SetMemTable, Version, stateBody(1<<32-1, 0)...)), ErrBadMessage, "regions"},
	{"table with less than it says",
		write(raw(SetMemTable, Version, append(stateBody(2, 0), make([]byte, memRegionLen)...)...)), ErrBadMessage,
		"2 regions in 32 bytes"},
	{"table with too few descriptors", func(t *testing.T, g *guest, l *link) {
		r := memRegion{0, 4096, userBase, 0}
		must(t, l.conn.sock.WriteFDs(raw(SetMemTable, Version, tableBody(r, r)...), []int{g.fd}))
	}, ErrBadMessage, "2 regions with 1 descriptors"},
	{"empty region", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(SetMemTable, Version, tableBody(memRegion{})...), []int{g.fd}))
	}, ErrBadMessage, "empty"},
	{"region that wraps", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(AddMemReg, Version, singleBody(memRegion{1<<64 - 4096, 8192, userBase, 0})...), []int{g.fd}))
	}, ErrBadMessage, "beyond the address space"},
	{"user addresses that wrap", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(AddMemReg, Version, singleBody(memRegion{1 << 40, 8192, 1<<64 - 1, 0})...), []int{g.fd}))
	}, ErrBadMessage, "user address"},
	{"offset that wraps", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(AddMemReg, Version, singleBody(memRegion{1 << 40, 8192, userBase, 1<<64 - 8})...),
			[]int{g.fd}))
	}, ErrBadMessage, "mmap offset"},
	{"memory refused without REPLY_ACK", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(AddMemReg, Version, singleBody(memRegion{1 << 40, 2 * guestSize, 1 << 40, 0})...),
			[]int{g.fd}))
	}, ErrMemory, "share=on"},

	{"region beyond its file", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 8192, 1 << 40, guestSize - 4096})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"region of 2^64-1 bytes", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{0, 1<<64 - 1, 0, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"region of all pages", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{0, 1<<64 - 4096, 0, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"region that overlaps", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{guestSize - 4096, 8192, 1 << 40, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"table that overlaps itself", refusedBy(SetMemTable, func(*guest) []byte {
		return tableBody(memRegion{0, 8192, userBase, 0}, memRegion{4096, 8192, userBase + 8192, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd, g.fd} }), nil, ""},
	{"region of a byte", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 1, 1 << 40, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"region of a page and a byte", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 4097, 1 << 40, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"region that begins in a page", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1<<40 + 2048, 4096, 1 << 40, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"region from within a page of its file", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 4096, 1 << 40, 16})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd} }), nil, ""},
	{"table with a region of a byte", refusedBy(SetMemTable, func(*guest) []byte {
		return tableBody(memRegion{0, guestSize, userBase, 0}, memRegion{1 << 40, 1, 1 << 40, 0})
	}, func(_ *testing.T, g *guest) []int { return []int{g.fd, g.fd} }), nil, ""},
	{"region of a byte without REPLY_ACK", func(t *testing.T, g *guest, l *link) {
		must(t, l.conn.sock.WriteFDs(raw(AddMemReg, Version, singleBody(memRegion{1 << 40, 1, 1 << 40, 0})...), []int{g.fd}))
	}, ErrMemory, "region at 0x10000000000: 0x1 bytes from mmap offset 0x0: not whole pages of 4096 bytes"},
	{"table with half a page without REPLY_ACK", func(t *testing.T, g *guest, l *link) {
		table := tableBody(memRegion{0, 4096, userBase, 0}, memRegion{8192, 4096, userBase + 8192, 2048})
		must(t, l.conn.sock.WriteFDs(raw(SetMemTable, Version, table...), []int{g.fd, g.fd}))
	}, ErrMemory, "SET_MEM_TABLE: 1: region at 0x2000: 0x1000 bytes from mmap offset 0x800: not whole pages"},
	{"region never added", refusedBy(RemMemReg, func(*guest) []byte {
		return singleBody(memRegion{0, guestSize, userBase + 1, 0})
	}, nil), nil, ""},
	{"memory that is an eventfd", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 4096, 1 << 40, 0})
	}, func(t *testing.T, _ *guest) []int { return []int{eventfd(t)} }), nil, ""},
	{"memory that is a device", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 4096, 1 << 40, 0})
	}, openFile("/dev/zero", os.O_RDWR)), nil, ""},
	{"memory that is read-only", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 4096, 1 << 40, 0})
	}, func(t *testing.T, _ *guest) []int {
		name := filepath.Join(t.TempDir(), "ram")
		must(t, os.WriteFile(name, make([]byte, 4096), 0o600))
		return openFile(name, os.O_RDONLY)(t, nil)
	}), nil, ""},
	{"memory that is empty", refusedBy(AddMemReg, func(*guest) []byte {
		return singleBody(memRegion{1 << 40, 4096, 1 << 40, 0})
	}, func(t *testing.T, _ *guest) []int { return []int{memfd(t, 0)} }), nil, ""},
	{"REM_MEM_REG with a descriptor", func(t *testing.T, g *guest, l *link) { // allowed, and closed
		must(t, l.AddMemory(g.fd, 1<<40, 1<<40, 4096, 0))
		must(t, l.command(RemMemReg, singleBody(memRegion{1 << 40, 4096, 1 << 40, 99}), g.fd))
	}, nil, ""},
	{"dirty logging", refusedBy(SetVringAddr, func(*guest) []byte {
		return peer.Append(nil, vringAddr{Flags: vringLog})
	}, nil), nil, ""},
	{"ring outside the memory", func(t *testing.T, g *guest, l *link) {
		for _, addr := range []uint64{0, userBase - 1, userBase + guestSize, userBase + guestSize - 2047, 1<<64 - 1} {
			if err := l.SetVringAddr(2, addr, userBase, userBase); err != nil {
				t.Errorf("%#x: %v", addr, err)
			}
			must(t, l.vringState(SetVringNum, 2, 128))
			if err := l.SetVringKick(2, -1); !errors.Is(err, ErrRefused) {
				t.Errorf("%#x: %v", addr, err)
			}
			if _, err := l.GetVringBase(2); err != nil {
				t.Errorf("%#x: %v", addr, err)
			}
		}
	}, nil, ""},
	{"refusals without end", func(t *testing.T, g *guest, l *link) {
		for range 1000 {
			if err := l.SetMTU(1); !errors.Is(err, ErrRefused) {
				t.Fatal(err)
			}
		}
	}, nil, ""},
	{"the same kick a hundred times", func(t *testing.T, g *guest, l *link) {
		fd := eventfd(t)
		for range 100 {
			must(t, l.SetVringKick(0, fd))
			must(t, l.SetVringCall(0, fd))
			must(t, l.SetVringErr(3, fd))
			must(t, l.command(SetBackendReqFD, nil, fd))
		}
	}, nil, ""},
	{"one byte at a time", func(t *testing.T, g *guest, l *link) {
		b := raw(SetVringCall, Version, u64Body(1)...)
		for i := range b {
			var fds []int
			if i == 0 {
				fds = []int{eventfd(t)}
			}
			must(t, l.conn.sock.WriteFDs(b[i:i+1], fds))
		}
	}, nil, ""},
	{"many messages in one write", func(t *testing.T, g *guest, l *link) {
		var b []byte
		for range 100 {
			b = append(b, raw(SetVringCall, Version, u64Body(1|vringNoFD)...)...)
		}
		must(t, l.conn.sock.WriteFDs(b, nil))
	}, nil, ""},
	{"hangs up", func(t *testing.T, _ *guest, l *link) { l.Close() }, errHungUp, ""},
	{"hangs up with answers unread", func(t *testing.T, _ *guest, l *link) {
		for range 10 {
			must(t, l.conn.sock.WriteFDs(raw(GetFeatures, Version), nil))
		}
		l.Close()
	}, errHungUp, ""},
}

// waitRead returns when the backend has read all that was written.
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

// errHungUp stands for an orderly end, which is nil.
var errHungUp = errors.New("hung up")

func openFile(name string, mode int) func(*testing.T, *guest) []int {
	return func(t *testing.T, _ *guest) []int {
		f, err := os.OpenFile(name, mode, 0)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return []int{int(f.Fd())}
	}
}

// TestHostileFrontends: each attack ends with another port that still works, the attacked one
// serving a new connection, and descriptors and goroutines as before.
//
// Invariant: vhostuser: A hostile frontend ends its own connection at most, and leaves nothing
// behind.
func TestHostileFrontends(t *testing.T) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			bystander, other, b := serving(t)
			other.start(b, 2)
			h, g := newHost(t), newGuest(t)
			l := h.connect()
			g.start(l, 2)
			a.do(t, g, l)
			if a.ends == nil {
				if n := h.liveQueues(); n != 2 {
					t.Errorf("%d queues live", n)
				}
				h.works(l)
				must(t, l.HangUp())
			} else if err := l.Wait(); a.ends == errHungUp && err != nil || a.ends != errHungUp &&
				(!errors.Is(err, a.ends) || !strings.Contains(err.Error(), a.says)) {
				t.Errorf("Serve: %v\nwant %v with %q", err, a.ends, a.says)
			}
			h.friendly()
			bystander.works(b)
		})
	}
}

// TestHostileFrontendDoesNotRead: the answers fill the socket, Serve waits to write, and its context still ends it.
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
	// Once the frontend's own writes find no more room, Serve does not read: it cannot write.
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

// TestHostileShapes sends every request with every wrong size and number of descriptors.
//
// Invariant: vhostuser: A hostile frontend ends its own connection at most, and leaves nothing
// behind.
func TestHostileShapes(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	fd := eventfd(t)
	for r := Request(0); r <= GetShmemConfig+1; r++ {
		for _, size := range []int{0, 1, 7, 8, 9, 12, 39, 40, 41, 268, 269} {
			for _, fds := range [][]int{nil, {fd}, {fd, fd}} {
				l := h.connect()
				must(t, l.conn.sock.WriteFDs(raw(r, Version|FlagNeedReply, make([]byte, size)...), fds))
				must(t, l.sock.CloseWrite())
				err := l.Wait()
				if err != nil && !errors.Is(err, ErrBadMessage) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrMemory) {
					t.Errorf("%v, %d bytes, %d descriptors: %v", r, size, len(fds), err)
				}
				l.Close()
			}
		}
	}
	h.friendly()
}
