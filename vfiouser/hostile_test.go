package vfiouser_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/vfiotest"
)

// attack is what a hostile client does on a connection with memory and an interrupt. ends, if not
// nil, is the error with which Serve must end of itself; otherwise the connection must go on.
type attack struct {
	name string
	do   func(t *testing.T, l *link)
	ends error
	says string // part of the error, or of the log
}

func head(cmd vfiouser.Command, flags vfiouser.Flags) vfiouser.Header {
	return vfiouser.Header{ID: 77, Command: cmd, Flags: flags}
}

// raw writes bytes.
func raw(b ...byte) func(*testing.T, *link) {
	return func(t *testing.T, l *link) {
		_, err := l.Conn().Write(b)
		must(t, err)
	}
}

// send sends a message and does not wait.
func send(m vfiotest.Message) func(*testing.T, *link) {
	return func(t *testing.T, l *link) { must(t, l.Send(m)) }
}

// refused sends a request and wants an errno.
func refused(errno unix.Errno, cmd vfiouser.Command, body []byte, fds ...string) func(*testing.T, *link) {
	return func(t *testing.T, l *link) {
		t.Helper()
		_, err := l.Request(cmd, body, -1, files(t, fds...)...)
		want(t, err, errno)
	}
}

// files opens descriptors by kind, for the time of the test.
func files(t *testing.T, kinds ...string) []int {
	t.Helper()
	var fds []int
	for _, kind := range kinds {
		switch kind {
		case "event":
			fds = append(fds, event(t).FD())
		case "memory":
			fds = append(fds, memory(t, 1<<16).FD())
		case "pipe":
			r, w, err := os.Pipe()
			must(t, err)
			t.Cleanup(func() { r.Close(); w.Close() })
			fds = append(fds, int(w.Fd()))
		case "socket":
			a, b, err := vfiotest.Pair()
			must(t, err)
			t.Cleanup(func() { a.Close(); b.Close() })
			f, err := a.File()
			must(t, err)
			t.Cleanup(func() { f.Close() })
			fds = append(fds, int(f.Fd()))
		case "directory":
			f, err := os.Open(t.TempDir())
			must(t, err)
			t.Cleanup(func() { f.Close() })
			fds = append(fds, int(f.Fd()))
		case "empty":
			f, err := os.Create(filepath.Join(t.TempDir(), "empty"))
			must(t, err)
			t.Cleanup(func() { f.Close() })
			fds = append(fds, int(f.Fd()))
		default:
			t.Fatal(kind)
		}
	}
	return fds
}

func times(n int, kind string) []string {
	var kinds []string
	for range n {
		kinds = append(kinds, kind)
	}
	return kinds
}

func access(region int, off uint64, count int, data ...byte) []byte {
	return append(vfiotest.Access(region, off, count), data...)
}

func multi(n uint64, entries ...[]byte) []byte {
	b := le.AppendUint64(nil, n)
	for _, e := range entries {
		b = append(b, e...)
	}
	return b
}

func zeros(n int) []byte { return make([]byte, n) }

// bare returns words, 32 bits each.
func bare(ws ...uint32) []byte {
	var b []byte
	for _, w := range ws {
		b = le.AppendUint32(b, w)
	}
	return b
}

var attacks = []attack{
	{"closes in a header", func(t *testing.T, l *link) { raw(1, 2, 3)(t, l); l.Close() }, io.ErrUnexpectedEOF, "header"},
	{"closes in a payload", func(t *testing.T, l *link) {
		must(t, l.Send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdReset, Size: 100}}))
		l.Close()
	}, io.ErrUnexpectedEOF, "DEVICE_RESET"},
	{"closes before a payload with descriptors", func(t *testing.T, l *link) {
		must(t, l.Send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdDMAMap, Size: 48},
			FDs: files(t, "memory")}))
		l.Close()
	}, io.ErrUnexpectedEOF, "DMA_MAP"},
	{"sends nonsense", raw([]byte("GET / HTTP/1.1\r\nHost: me\r\n\r\n")...), vfiouser.ErrBadMessage, ""},
	{"sends zeros", raw(zeros(16)...), vfiouser.ErrBadMessage, "0 bytes"},
	{"has a size of 15", send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdReset, Size: 15}}),
		vfiouser.ErrBadMessage, "15 bytes"},
	{"sends 4 GiB", send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionWrite, Size: 1<<32 - 1}}),
		vfiouser.ErrBadMessage, "4294967295 bytes"},
	{"sends a little too much",
		send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionWrite, Size: 16 + 16 + 1<<20 + 1}}),
		vfiouser.ErrBadMessage, "1048609 bytes"},
	{"sends a reply", send(vfiotest.Message{Header: head(vfiouser.CmdReset, vfiouser.FlagReply)}), vfiouser.ErrBadMessage,
		"flags 0x1"},
	{"sends a type that is none", send(vfiotest.Message{Header: head(vfiouser.CmdReset, 8)}), vfiouser.ErrBadMessage,
		"flags 0x8"},
	{"sends too many descriptors", func(t *testing.T, l *link) {
		must(t, l.Send(vfiotest.Message{Header: head(vfiouser.CmdReset, 0), FDs: files(t, times(17, "event")...)}))
	}, vfiouser.ErrBadMessage, "more than 16"},
	{"sends the most descriptors", func(t *testing.T, l *link) {
		fds := make([]int, 253) // SCM_MAX_FD
		e := event(t)
		for i := range fds {
			fds[i] = e.FD()
		}
		must(t, l.Send(vfiotest.Message{Header: head(vfiouser.CmdSetIRQs, 0), Body: vfiotest.IRQSet(0x24, 2, 0, 253),
			FDs: fds}))
	}, vfiouser.ErrBadMessage, "more than 16"},

	{"command 0", refused(unix.ENOTSUP, 0, nil), nil, "command 0: unknown"},
	{"command 19", refused(unix.ENOTSUP, 19, zeros(100)), nil, "command 19: unknown"},
	{"command 65535 with descriptors", refused(unix.ENOTSUP, 65535, nil, times(16, "event")...), nil, "unknown"},
	{"region descriptors", refused(unix.ENOTSUP, vfiouser.CmdGetRegionIOFDs, zeros(16)), nil,
		"no descriptors of their own"},
	{"DMA read", refused(unix.ENOTSUP, vfiouser.CmdDMARead, zeros(16)), nil, "of servers"},
	{"DMA write", refused(unix.ENOTSUP, vfiouser.CmdDMAWrite, zeros(16)), nil, "of servers"},
	{"dirty pages", refused(unix.ENOTSUP, vfiouser.CmdDirtyPages, zeros(8)), nil, "dirty"},
	{"features", refused(unix.ENOTSUP, vfiouser.CmdFeature, zeros(8)), nil, "migration"},
	{"migration read", refused(unix.ENOTSUP, vfiouser.CmdMigDataRead, zeros(8)), nil, "migration"},
	{"migration write", refused(unix.ENOTSUP, vfiouser.CmdMigDataWrite, zeros(1<<20), "memory"), nil, "migration"},
	{"posted nonsense", func(t *testing.T, l *link) {
		for _, cmd := range []vfiouser.Command{0, 1, 2, 3, 6, 8, 9, 10, 15, 18, 1000} {
			must(t, l.Send(vfiotest.Message{Header: head(cmd, vfiouser.FlagNoReply), Body: zeros(5), FDs: files(t, "event")}))
		}
	}, nil, "posted=true"},
	{"unknown flags", func(t *testing.T, l *link) {
		must(t, l.Send(vfiotest.Message{Header: head(vfiouser.CmdReset, 0xffffffe0)}))
		if r, err := l.Receive(); err != nil || r.Flags != vfiouser.FlagReply {
			t.Errorf("%+v, %v", r, err)
		}
	}, nil, ""},
	{"descriptors with later bytes", func(t *testing.T, l *link) {
		b := []byte{1, 0, 13, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		for i := range b {
			_, _, err := l.Conn().WriteMsgUnix(b[i:i+1], unix.UnixRights(event(t).FD()), nil)
			must(t, err)
		}
		// One with the first byte is one too many for a reset.
		if r, err := l.Receive(); err != nil || r.Flags&vfiouser.FlagError == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}, nil, "1 descriptors"},

	{"short DMA_MAP", refused(unix.EINVAL, vfiouser.CmdDMAMap, zeros(31)), nil, "31 bytes"},
	{"long DMA_MAP", refused(unix.EINVAL, vfiouser.CmdDMAMap, zeros(33), "memory"), nil, "33 bytes"},
	{"two descriptors in DMA_MAP", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 4096), "memory",
		"memory"), nil, "2 descriptors"},
	{"DMA_MAP without flags", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(0, 0, 0, 4096), "memory"), nil,
		"flags 0x0"},
	{"DMA_MAP with unknown flags", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(7, 0, 0, 4096), "memory"), nil,
		"flags 0x7"},
	{"DMA_MAP of nothing", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 0), "memory"), nil, ""},
	{"DMA_MAP beyond the address space", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 1<<64-4096, 8192),
		"memory"), nil, ""},
	{"DMA_MAP beyond the file", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 1<<16, 0, 4096), "memory"),
		nil, ""},
	{"DMA_MAP with an offset that overflows", refused(unix.EINVAL, vfiouser.CmdDMAMap,
		vfiotest.DMAMap(3, 1<<64-4096, 0, 8192), "memory"), nil, ""},
	{"DMA_MAP of a byte",
		refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 1), "memory"), nil,
		"[0x0, +0x1) from offset 0x0 of its file: not whole pages of 4096 bytes"},
	{"DMA_MAP of a page and a byte",
		refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 4097), "memory"), nil,
		"not whole pages"},
	{"DMA_MAP from within a page",
		refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 2048, 4096), "memory"), nil,
		"not whole pages"},
	{"DMA_MAP from within a page of its file",
		refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 16, 0, 4096), "memory"), nil,
		"not whole pages"},
	{"DMA_MAP of a byte without a descriptor",
		refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(1, 0, 0, 1)), nil,
		"not whole pages"},
	{"DMA_MAP of a pipe", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 4096), "pipe"), nil,
		"not a regular file"},
	{"DMA_MAP of a socket", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 4096), "socket"), nil, ""},
	{"DMA_MAP of a directory", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 4096), "directory"), nil,
		""},
	{"DMA_MAP of an eventfd", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 4096), "event"), nil, ""},
	{"DMA_MAP of an empty file", refused(unix.EINVAL, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, 0, 4096), "empty"), nil,
		""},
	{"DMA_MAP over another", refused(unix.EEXIST, vfiouser.CmdDMAMap, vfiotest.DMAMap(3, 0, attackIOVA-4096, 8192),
		"memory"), nil, "overlaps"},
	{"DMA_UNMAP of a part", refused(unix.EINVAL, vfiouser.CmdDMAUnmap, vfiotest.DMAUnmap(0, attackIOVA, 4096)), nil,
		"cuts"},
	{"DMA_UNMAP with dirty pages", refused(unix.ENOTSUP, vfiouser.CmdDMAUnmap, vfiotest.DMAUnmap(1, attackIOVA, 8192)),
		nil, "dirty"},
	{"DMA_UNMAP with unknown flags", refused(unix.EINVAL, vfiouser.CmdDMAUnmap, vfiotest.DMAUnmap(4, attackIOVA, 8192)),
		nil, ""},
	{"DMA_UNMAP beyond the address space", refused(unix.EINVAL, vfiouser.CmdDMAUnmap,
		vfiotest.DMAUnmap(0, 1<<63, 1<<63+1)), nil, ""},
	{"short DMA_UNMAP", refused(unix.EINVAL, vfiouser.CmdDMAUnmap, zeros(23)), nil, ""},

	{"GET_INFO without room", refused(unix.EINVAL, vfiouser.CmdGetInfo, bare(15, 0, 0, 0)), nil, "argsz"},
	{"GET_REGION_INFO of none", refused(unix.EINVAL, vfiouser.CmdGetRegionInfo,
		append(bare(32, 0, 1<<31, 0), zeros(16)...)), nil, ""},
	{"GET_REGION_INFO without room", refused(unix.EINVAL, vfiouser.CmdGetRegionInfo, zeros(32)), nil, ""},
	{"GET_IRQ_INFO of none", refused(unix.EINVAL, vfiouser.CmdGetIRQInfo, bare(16, 0, 1<<32-1, 0)), nil, ""},

	{"read of no region", refused(unix.EINVAL, vfiouser.CmdRegionRead, access(9, 0, 4)), nil, ""},
	{"read of the last region", refused(unix.EINVAL, vfiouser.CmdRegionRead, access(-1, 0, 4)), nil, ""},
	{"read of an absent region", refused(unix.EINVAL, vfiouser.CmdRegionRead, access(3, 0, 1)), nil, ""},
	{"read across the end", refused(unix.EINVAL, vfiouser.CmdRegionRead, access(0, regsSize-2, 4)), nil, "0x1000 bytes"},
	{"read beyond the end", refused(unix.EINVAL, vfiouser.CmdRegionRead, access(0, 1<<64-1, 4)), nil, ""},
	{"read of nothing", refused(unix.EINVAL, vfiouser.CmdRegionRead, access(0, 0, 0)), nil, ""},
	{"read of 4 GiB", refused(unix.EINVAL, vfiouser.CmdRegionRead, access(0, 0, 1<<32-1)), nil, ""},
	{"read of what is written only", refused(unix.EPERM, vfiouser.CmdRegionRead, access(2, 0, 4)), nil, "not allowed"},
	{"write to what is read only", refused(unix.EPERM, vfiouser.CmdRegionWrite, access(6, 0, 4, 1, 2, 3, 4)), nil,
		"not allowed"},
	{"write with less than it says", refused(unix.EINVAL, vfiouser.CmdRegionWrite, access(0, 0, 4, 1, 2, 3)), nil,
		"comes with 3"},
	{"write with more than it says", refused(unix.EINVAL, vfiouser.CmdRegionWrite, access(0, 0, 1, 1, 2)), nil,
		"comes with 2"},
	{"write of nothing", refused(unix.EINVAL, vfiouser.CmdRegionWrite, access(0, 0, 0)), nil, ""},
	{"write across the end", refused(unix.EINVAL, vfiouser.CmdRegionWrite, access(0, regsSize, 1, 1)), nil, ""},
	{"write of configuration across its end", refused(unix.EINVAL, vfiouser.CmdRegionWrite, access(7, 4095, 2, 1, 1)), nil,
		""},
	{"many writes of none", refused(unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1)), nil, "1 writes in 0"},
	{"many writes of too many", refused(unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1<<61, zeros(24))), nil, ""},
	{"many writes that overflow", refused(unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1<<61/3*8+1, zeros(24))), nil,
		""},
	{"many writes with a rest", refused(unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1, zeros(25))), nil, ""},
	{"many writes of nine bytes", refused(unix.EINVAL, vfiouser.CmdRegionWriteMulti,
		multi(1, access(0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8))), nil, "write 0 of 1"},
	{"many writes, the last beyond the end", refused(unix.EINVAL, vfiouser.CmdRegionWriteMulti,
		multi(2, access(0, 0, 8, zeros(8)...), access(0, regsSize-4, 8, zeros(8)...))), nil, "write 1 of 2"},

	{"SET_IRQS of no index", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 5, 0, 1), "event"), nil, ""},
	{"SET_IRQS of an index without vectors", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 0, 0, 1),
		"event"), nil, "of 0"},
	{"SET_IRQS beyond the vectors", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 2, vectors-1, 2),
		"event", "event"), nil, ""},
	{"SET_IRQS that overflows", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 2, 1<<32-1, 2), "event",
		"event"), nil, ""},
	{"SET_IRQS with fewer descriptors", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 2, 0, 3), "event",
		"event"), nil, "2 descriptors for 3"},
	{"SET_IRQS with more descriptors", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 2, 0, 1), "event",
		"event"), nil, ""},
	{"SET_IRQS of nothing", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 2, 0, 0)), nil, ""},
	{"SET_IRQS with a pipe", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 2, 0, 1), "pipe"), nil,
		"not an eventfd"},
	{"SET_IRQS with a memfd behind an eventfd", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, 2, 0, 2),
		"event", "memory"), nil, "vector 1"},
	{"SET_IRQS that disables with a descriptor", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x21, 2, 0, 0),
		"event"), nil, ""},
	{"SET_IRQS that triggers", refused(unix.ENOTSUP, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x21, 2, 0, 1)), nil, "trigger"},
	{"SET_IRQS that triggers some", refused(unix.ENOTSUP, vfiouser.CmdSetIRQs, append(vfiotest.IRQSet(0x22, 2, 0, 2), 1,
		0)), nil, "trigger"},
	{"SET_IRQS that masks", refused(unix.ENOTSUP, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x09, 2, 0, 1)), nil, "masked"},
	{"SET_IRQS that unmasks with an eventfd", refused(unix.ENOTSUP, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x14, 2, 0, 1),
		"event"), nil, "masked"},
	{"SET_IRQS with two kinds of data", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x25, 2, 0, 1)), nil,
		""},
	{"SET_IRQS with no action", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x04, 2, 0, 1), "event"), nil,
		""},
	{"SET_IRQS with unknown flags", refused(unix.EINVAL, vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x64, 2, 0, 1), "event"),
		nil, ""},
	{"SET_IRQS without room", refused(unix.EINVAL, vfiouser.CmdSetIRQs, zeros(20)), nil, ""},
	{"reset with a payload", refused(unix.EINVAL, vfiouser.CmdReset, zeros(1)), nil, ""},
	{"errors without end", func(t *testing.T, l *link) {
		for range 200 {
			must(t, l.Post(3, 0, []byte{1}))
		}
	}, nil, ""},
}

// attackIOVA is where an attacked connection has 8192 bytes of memory.
const attackIOVA = 0x1000_0000

// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func TestHostileClients(t *testing.T) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			testkit.CheckFDs(t)
			h := newHost(t)
			l := h.connect()
			must(t, l.Map(attackIOVA, memory(t, 8192)))
			must(t, l.SetIRQ(vfiouser.IRQMSIX, 9, event(t)))
			a.do(t, l)
			if a.ends != nil {
				if err := l.Wait(); !errors.Is(err, a.ends) || !strings.Contains(err.Error(), a.says) {
					t.Errorf("Serve: %v, wanted %v with %q", err, a.ends, a.says)
				}
				l.Close()
			} else {
				h.works(l, guestIOVA)
				must(t, h.SetByteAt(attackIOVA, 1))
				must(t, l.HangUp())
				if s := h.Logs.String(); !strings.Contains(s, a.says) {
					t.Errorf("log, without %q:\n%s", a.says, s)
				}
			}
			if n := strings.Count(h.Logs.String(), "\n"); n > 24 {
				t.Errorf("%d lines of log", n)
			}
			h.friendly()
		})
	}
}

// What is wrong with VERSION ends the connection, as does what comes before it.
//
// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func TestHostileVersions(t *testing.T) {
	for _, a := range []struct {
		name string
		m    vfiotest.Message
		says string
	}{
		{"none", vfiotest.Message{Header: head(vfiouser.CmdGetInfo, 0), Body: zeros(16)}, "before VERSION"},
		{"none, and a map", vfiotest.Message{Header: head(vfiouser.CmdDMAMap, 0), Body: vfiotest.DMAMap(3, 0, 0, 4096)},
			"before VERSION"},
		{"major 1", vfiotest.Message{Header: head(vfiouser.CmdVersion, 0), Body: []byte{1, 0, 0, 0}}, "speaks 1.0"},
		{"no NUL", vfiotest.Message{Header: head(vfiouser.CmdVersion, 0), Body: []byte("\x00\x00\x00\x00{}")}, "NUL"},
		{"NUL within", vfiotest.Message{Header: head(vfiouser.CmdVersion, 0), Body: []byte("\x00\x00\x00\x00{}\x00{}\x00")},
			"NUL"},
		{"no JSON", vfiotest.Message{Header: head(vfiouser.CmdVersion, 0), Body: []byte("\x00\x00\x00\x00{\x00")},
			"version data"},
		{"empty", vfiotest.Message{Header: head(vfiouser.CmdVersion, 0), Body: []byte("\x00\x00\x00\x00\x00")},
			"version data"},
		{"wrong kind", vfiotest.Message{Header: head(vfiouser.CmdVersion, 0),
			Body: []byte("\x00\x00\x00\x00{\"capabilities\":{\"max_msg_fds\":-1}}\x00")}, "version data"},
		{"deep", vfiotest.Message{Header: head(vfiouser.CmdVersion, 0),
			Body: []byte("\x00\x00\x00\x00" + strings.Repeat("[", 60000) + "\x00")}, "version data"},
	} {
		t.Run(a.name, func(t *testing.T) {
			testkit.CheckFDs(t)
			h := newHost(t)
			l := h.dial()
			must(t, l.Send(a.m))
			if r, err := l.Receive(); err != nil || r.Flags&vfiouser.FlagError == 0 {
				t.Errorf("answer: %+v, %v", r, err)
			}
			if err := l.Wait(); !errors.Is(err, vfiouser.ErrBadMessage) || !strings.Contains(err.Error(), a.says) {
				t.Errorf("Serve: %v, wanted %q", err, a.says)
			}
			l.Close()
			h.friendly()
		})
	}
}

// Whatever a client does with descriptors, this process keeps none.
//
// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func TestDescriptorsAreClosed(t *testing.T) {
	h, l := serving(t)
	e := event(t)
	m := memory(t, 8192)
	before := len(testkit.FDs())
	for cmd := range vfiouser.Command(32) {
		if cmd == vfiouser.CmdVersion {
			continue
		}
		for _, body := range [][]byte{nil, zeros(16), zeros(20), zeros(24), zeros(32), vfiotest.DMAMap(3, 0, 0, 8192),
			vfiotest.IRQSet(0x24, 2, 0, 2)} {
			_, _ = l.Request(cmd, body, -1, e.FD(), m.FD())
			_, _ = l.Request(cmd, body, -1, m.FD())
		}
	}
	_, _ = l.Request(vfiouser.CmdDMAUnmap, vfiotest.DMAUnmap(2, 0, 0), -1)
	for range 100 {
		must(t, l.SetIRQ(vfiouser.IRQMSIX, 1, e))
	}
	if n := len(testkit.FDs()); n != before+1 {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	h.works(l, guestIOVA)
}
