package vfiouser_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

// attack is what a hostile client does on a connection with memory and an interrupt. ends is the error with
// which Serve must end; nil: the connection must go on. If do is nil, the client sends the header sends with the
// descriptors files.
type attack struct {
	name  string
	sends vfiouser.Header
	files string
	ends  error
	says  string // part of the error of Serve; if ends is nil, of the log
	do    func(t *testing.T, l *link)
}

func head(cmd vfiouser.Command, flags vfiouser.Flags) vfiouser.Header {
	return vfiouser.Header{ID: 77, Command: cmd, Flags: flags}
}

func (l *link) write(t *testing.T, b ...byte) {
	t.Helper()
	_, err := l.Conn().Write(b)
	must(t, err)
}

// files opens a descriptor of each of the kinds, until the end of the test.
func files(t *testing.T, kinds string) []int {
	t.Helper()
	var fds []int
	add := func(f *os.File, err error) {
		must(t, err)
		t.Cleanup(func() { f.Close() })
		fds = append(fds, int(f.Fd()))
	}
	for _, kind := range strings.Fields(kinds) {
		switch kind {
		case "event":
			fds = append(fds, event(t).FD())
		case "memory":
			fds = append(fds, memory(t, 1<<16).FD())
		case "pipe":
			r, w, err := os.Pipe()
			t.Cleanup(func() { r.Close() })
			add(w, err)
		case "socket":
			a, b := testkit.SocketPair(t)
			t.Cleanup(func() { a.Close(); b.Close() })
			add(a.File())
		case "directory":
			add(os.Open(t.TempDir()))
		case "empty":
			add(os.Create(filepath.Join(t.TempDir(), "empty")))
		default:
			t.Fatal(kind)
		}
	}
	return fds
}

func access(region int, off uint64, count int, data ...byte) []byte {
	return append(vfiotest.Access(region, off, count), data...)
}

func multi(n uint64, entries ...[]byte) []byte {
	return slices.Concat(le.AppendUint64(nil, n), slices.Concat(entries...))
}

func zeros(n int) []byte { return make([]byte, n) }

func bare(ws ...uint32) []byte { return peer.Append(nil, ws) }

var (
	dmaMap, dmaUnmap, irqSet = vfiotest.DMAMap, vfiotest.DMAUnmap, vfiotest.IRQSet

	errBad = vfiouser.ErrBadMessage
)

var attacks = []attack{
	{name: "closes in a header", ends: io.ErrUnexpectedEOF, says: "header", do: func(t *testing.T, l *link) {
		l.write(t, 1, 2, 3)
		l.Close()
	}},
	{name: "closes in a payload", ends: io.ErrUnexpectedEOF, says: "DEVICE_RESET", do: func(t *testing.T, l *link) {
		l.post(t, vfiouser.Header{Command: vfiouser.CmdReset, Size: 100}, nil)
		l.Close()
	}},
	{name: "closes before a payload with descriptors", ends: io.ErrUnexpectedEOF, says: "DMA_MAP",
		do: func(t *testing.T, l *link) {
			l.post(t, vfiouser.Header{Command: vfiouser.CmdDMAMap, Size: 48}, nil, files(t, "memory")...)
			l.Close()
		}},
	{name: "sends nonsense", ends: errBad, do: func(t *testing.T, l *link) {
		l.write(t, []byte("GET / HTTP/1.1\r\nHost: me\r\n\r\n")...)
	}},
	{name: "sends zeros", ends: errBad, says: "0 bytes", do: func(t *testing.T, l *link) { l.write(t, zeros(16)...) }},
	{"has a size of 15", vfiouser.Header{Command: vfiouser.CmdReset, Size: 15}, "", errBad, "15 bytes", nil},
	{"sends 4 GiB", vfiouser.Header{Command: vfiouser.CmdRegionWrite, Size: 1<<32 - 1}, "", errBad,
		"4294967295 bytes", nil},
	{"sends a little too much", vfiouser.Header{Command: vfiouser.CmdRegionWrite, Size: 16 + 16 + 1<<20 + 1}, "", errBad,
		"1048609 bytes", nil},
	{"sends a reply", head(vfiouser.CmdReset, vfiouser.FlagReply), "", errBad, "flags 0x1", nil},
	{"sends a type that is none", head(vfiouser.CmdReset, 8), "", errBad, "flags 0x8", nil},
	{"sends too many descriptors", head(vfiouser.CmdReset, 0), strings.Repeat("event ", 17), errBad,
		"more than 16", nil},
	{name: "sends the most descriptors", ends: errBad, says: "more than 16", do: func(t *testing.T, l *link) {
		fds := slices.Repeat([]int{event(t).FD()}, 253) // SCM_MAX_FD
		l.post(t, head(vfiouser.CmdSetIRQs, 0), irqSet(0x24, 2, 0, 253), fds...)
	}},
	{name: "posted nonsense", says: "posted=true", do: func(t *testing.T, l *link) {
		for _, cmd := range []vfiouser.Command{0, 1, 2, 3, 6, 8, 9, 10, 15, 18, 1000} {
			l.post(t, head(cmd, vfiouser.FlagNoReply), zeros(5), files(t, "event")...)
		}
	}},
	{name: "unknown flags", do: func(t *testing.T, l *link) {
		l.post(t, head(vfiouser.CmdReset, 0xffffffe0), nil)
		if r, err := l.Receive(); err != nil || r.Flags != vfiouser.FlagReply {
			t.Errorf("%+v, %v", r, err)
		}
	}},
	{name: "descriptors with later bytes", says: "1 descriptors", do: func(t *testing.T, l *link) {
		for _, b := range []byte{1, 0, 13, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} {
			_, _, err := l.Conn().WriteMsgUnix([]byte{b}, unix.UnixRights(event(t).FD()), nil)
			must(t, err)
		}
		// A reset takes no descriptor.
		if r, err := l.Receive(); err != nil || r.Flags&vfiouser.FlagError == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}},
	{name: "errors without end", do: func(t *testing.T, l *link) {
		for range 200 {
			must(t, l.Post(3, 0, []byte{1}))
		}
	}},
}

// refusals are requests that must be answered with an errno; says is a part of the log.
var refusals = []struct {
	name  string
	errno unix.Errno
	cmd   vfiouser.Command
	body  []byte
	files string
	says  string
}{
	{"command 0", unix.ENOTSUP, 0, nil, "", "command 0: unknown"},
	{"command 19", unix.ENOTSUP, 19, zeros(100), "", "command 19: unknown"},
	{"command 65535 with descriptors", unix.ENOTSUP, 65535, nil, strings.Repeat("event ", 16), "unknown"},
	{"region descriptors", unix.ENOTSUP, vfiouser.CmdGetRegionIOFDs, zeros(16), "", "no descriptors of their own"},
	{"DMA read", unix.ENOTSUP, vfiouser.CmdDMARead, zeros(16), "", "of servers"},
	{"DMA write", unix.ENOTSUP, vfiouser.CmdDMAWrite, zeros(16), "", "of servers"},
	{"dirty pages", unix.ENOTSUP, vfiouser.CmdDirtyPages, zeros(8), "", "dirty"},
	{"features", unix.ENOTSUP, vfiouser.CmdFeature, zeros(8), "", "migration"},
	{"migration read", unix.ENOTSUP, vfiouser.CmdMigDataRead, zeros(8), "", "migration"},
	{"migration write", unix.ENOTSUP, vfiouser.CmdMigDataWrite, zeros(1 << 20), "memory", "migration"},

	{"short DMA_MAP", unix.EINVAL, vfiouser.CmdDMAMap, zeros(31), "", "31 bytes"},
	{"long DMA_MAP", unix.EINVAL, vfiouser.CmdDMAMap, zeros(33), "memory", "33 bytes"},
	{"two descriptors in DMA_MAP", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 4096),
		"memory memory", "2 descriptors"},
	{"DMA_MAP without flags", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(0, 0, 0, 4096), "memory", "flags 0x0"},
	{"DMA_MAP with unknown flags", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(7, 0, 0, 4096), "memory", "flags 0x7"},
	{"DMA_MAP of nothing", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 0), "memory", ""},
	{"DMA_MAP beyond the address space", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 1<<64-4096, 8192), "memory", ""},
	{"DMA_MAP beyond the file", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 1<<16, 0, 4096), "memory", ""},
	{"DMA_MAP with an offset that overflows", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 1<<64-4096, 0, 8192),
		"memory", ""},
	{"DMA_MAP of a byte", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 1),
		"memory", "DMA_MAP: [0x0, +0x1) from offset 0x0 of its file: not whole pages of 4096 bytes"},
	{"DMA_MAP of a page and a byte", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 4097), "memory", "not whole pages"},
	{"DMA_MAP from within a page", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 2048, 4096),
		"memory", "not whole pages"},
	{"DMA_MAP from within a page of its file", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 16, 0, 4096),
		"memory", "not whole pages"},
	{"DMA_MAP of a byte without a descriptor", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(1, 0, 0, 1),
		"", "not whole pages"},
	{"DMA_MAP of a pipe", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 4096), "pipe", "not a regular file"},
	{"DMA_MAP of a socket", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 4096), "socket", ""},
	{"DMA_MAP of a directory", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 4096), "directory", ""},
	{"DMA_MAP of an eventfd", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 4096), "event", ""},
	{"DMA_MAP of an empty file", unix.EINVAL, vfiouser.CmdDMAMap, dmaMap(3, 0, 0, 4096), "empty", ""},
	{"DMA_MAP over another", unix.EEXIST, vfiouser.CmdDMAMap, dmaMap(3, 0, attackIOVA-4096, 8192), "memory", "overlaps"},
	{"DMA_UNMAP of a part", unix.EINVAL, vfiouser.CmdDMAUnmap, dmaUnmap(0, attackIOVA, 4096), "", "cuts"},
	{"DMA_UNMAP with dirty pages", unix.ENOTSUP, vfiouser.CmdDMAUnmap, dmaUnmap(1, attackIOVA, 8192), "", "dirty"},
	{"DMA_UNMAP with unknown flags", unix.EINVAL, vfiouser.CmdDMAUnmap, dmaUnmap(4, attackIOVA, 8192), "", ""},
	{"DMA_UNMAP beyond the address space", unix.EINVAL, vfiouser.CmdDMAUnmap, dmaUnmap(0, 1<<63, 1<<63+1), "", ""},
	{"short DMA_UNMAP", unix.EINVAL, vfiouser.CmdDMAUnmap, zeros(23), "", ""},

	{"GET_INFO without room", unix.EINVAL, vfiouser.CmdGetInfo, bare(15, 0, 0, 0), "", "argsz"},
	{"GET_REGION_INFO of none", unix.EINVAL, vfiouser.CmdGetRegionInfo, append(bare(32, 0, 1<<31, 0), zeros(16)...),
		"", ""},
	{"GET_REGION_INFO without room", unix.EINVAL, vfiouser.CmdGetRegionInfo, zeros(32), "", ""},
	{"GET_IRQ_INFO of none", unix.EINVAL, vfiouser.CmdGetIRQInfo, bare(16, 0, 1<<32-1, 0), "", ""},

	{"read of no region", unix.EINVAL, vfiouser.CmdRegionRead, access(9, 0, 4), "", ""},
	{"read of the last region", unix.EINVAL, vfiouser.CmdRegionRead, access(-1, 0, 4), "", ""},
	{"read of an absent region", unix.EINVAL, vfiouser.CmdRegionRead, access(3, 0, 1), "", ""},
	{"read across the end", unix.EINVAL, vfiouser.CmdRegionRead, access(0, regsSize-2, 4), "", "0x1000 bytes"},
	{"read beyond the end", unix.EINVAL, vfiouser.CmdRegionRead, access(0, 1<<64-1, 4), "", ""},
	{"read of nothing", unix.EINVAL, vfiouser.CmdRegionRead, access(0, 0, 0), "", ""},
	{"read of 4 GiB", unix.EINVAL, vfiouser.CmdRegionRead, access(0, 0, 1<<32-1), "", ""},
	{"read of what is written only", unix.EPERM, vfiouser.CmdRegionRead, access(2, 0, 4), "", "not allowed"},
	{"write to what is read only", unix.EPERM, vfiouser.CmdRegionWrite, access(6, 0, 4, 1, 2, 3, 4), "", "not allowed"},
	{"write with less than it says", unix.EINVAL, vfiouser.CmdRegionWrite, access(0, 0, 4, 1, 2, 3), "", "comes with 3"},
	{"write with more than it says", unix.EINVAL, vfiouser.CmdRegionWrite, access(0, 0, 1, 1, 2), "", "comes with 2"},
	{"write of nothing", unix.EINVAL, vfiouser.CmdRegionWrite, access(0, 0, 0), "", ""},
	{"write across the end", unix.EINVAL, vfiouser.CmdRegionWrite, access(0, regsSize, 1, 1), "", ""},
	{"write of configuration across its end", unix.EINVAL, vfiouser.CmdRegionWrite, access(7, 4095, 2, 1, 1), "", ""},
	{"many writes of none", unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1), "", "1 writes in 0"},
	{"many writes of too many", unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1<<61, zeros(24)), "", ""},
	{"many writes that overflow", unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1<<61/3*8+1, zeros(24)), "", ""},
	{"many writes with a rest", unix.EINVAL, vfiouser.CmdRegionWriteMulti, multi(1, zeros(25)), "", ""},
	{"many writes of nine bytes", unix.EINVAL, vfiouser.CmdRegionWriteMulti,
		multi(1, access(0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8)), "", "write 0 of 1"},
	{"many writes, the last beyond the end", unix.EINVAL, vfiouser.CmdRegionWriteMulti,
		multi(2, access(0, 0, 8, zeros(8)...), access(0, regsSize-4, 8, zeros(8)...)), "", "write 1 of 2"},

	{"SET_IRQS of no index", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 5, 0, 1), "event", ""},
	{"SET_IRQS of an index without vectors", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 0, 0, 1), "event", "of 0"},
	{"SET_IRQS beyond the vectors", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 2, vectors-1, 2), "event event", ""},
	{"SET_IRQS that overflows", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 2, 1<<32-1, 2), "event event", ""},
	{"SET_IRQS with fewer descriptors", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 2, 0, 3),
		"event event", "2 descriptors for 3"},
	{"SET_IRQS with more descriptors", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 2, 0, 1), "event event", ""},
	{"SET_IRQS of nothing", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 2, 0, 0), "", ""},
	{"SET_IRQS with a pipe", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 2, 0, 1), "pipe", "not an eventfd"},
	{"SET_IRQS with a memfd behind an eventfd", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x24, 2, 0, 2),
		"event memory", "vector 1"},
	{"SET_IRQS that disables with a descriptor", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x21, 2, 0, 0), "event", ""},
	{"SET_IRQS that triggers", unix.ENOTSUP, vfiouser.CmdSetIRQs, irqSet(0x21, 2, 0, 1), "", "trigger"},
	{"SET_IRQS that triggers some", unix.ENOTSUP, vfiouser.CmdSetIRQs, append(irqSet(0x22, 2, 0, 2), 1, 0),
		"", "trigger"},
	{"SET_IRQS that masks", unix.ENOTSUP, vfiouser.CmdSetIRQs, irqSet(0x09, 2, 0, 1), "", "masked"},
	{"SET_IRQS that unmasks with an eventfd", unix.ENOTSUP, vfiouser.CmdSetIRQs, irqSet(0x14, 2, 0, 1),
		"event", "masked"},
	{"SET_IRQS with two kinds of data", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x25, 2, 0, 1), "", ""},
	{"SET_IRQS with no action", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x04, 2, 0, 1), "event", ""},
	{"SET_IRQS with unknown flags", unix.EINVAL, vfiouser.CmdSetIRQs, irqSet(0x64, 2, 0, 1), "event", ""},
	{"SET_IRQS without room", unix.EINVAL, vfiouser.CmdSetIRQs, zeros(20), "", ""},
	{"reset with a payload", unix.EINVAL, vfiouser.CmdReset, zeros(1), "", ""},
}

// attackIOVA is the address of the two pages that TestHostileClients maps before an attack.
const attackIOVA = 0x1000_0000

// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func TestHostileClients(t *testing.T) {
	all := attacks
	for _, r := range refusals {
		all = append(all, attack{name: r.name, says: r.says, do: func(t *testing.T, l *link) {
			_, err := l.Request(r.cmd, r.body, -1, files(t, r.files)...)
			want(t, err, r.errno)
		}})
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			testkit.CheckFDs(t)
			h := newHost(t)
			l := h.connect()
			must(t, l.Map(attackIOVA, memory(t, 8192)))
			must(t, l.SetIRQ(vfiouser.IRQMSIX, 9, event(t)))
			if a.do != nil {
				a.do(t, l)
			} else {
				l.post(t, a.sends, nil, files(t, a.files)...)
			}
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
			h.servesAnother()
		})
	}
}

// A wrong VERSION, or none at first, ends the connection.
//
// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func TestHostileVersions(t *testing.T) {
	const v00 = "\x00\x00\x00\x00"
	for _, a := range []struct {
		name string
		cmd  vfiouser.Command
		body string
		says string
	}{
		{"none", vfiouser.CmdGetInfo, string(zeros(16)), "before VERSION"},
		{"none, and a map", vfiouser.CmdDMAMap, string(dmaMap(3, 0, 0, 4096)), "before VERSION"},
		{"major 1", vfiouser.CmdVersion, "\x01\x00\x00\x00", "VERSION: the client speaks 1.0"},
		{"no NUL", vfiouser.CmdVersion, v00 + "{}", "NUL"},
		{"NUL within", vfiouser.CmdVersion, v00 + "{}\x00{}\x00", "NUL"},
		{"no JSON", vfiouser.CmdVersion, v00 + "{\x00", "version data"},
		{"empty", vfiouser.CmdVersion, v00 + "\x00", "version data"},
		{"wrong kind", vfiouser.CmdVersion, v00 + `{"capabilities":{"max_msg_fds":-1}}` + "\x00", "version data"},
		{"deep", vfiouser.CmdVersion, v00 + strings.Repeat("[", 60000) + "\x00", "version data"},
	} {
		t.Run(a.name, func(t *testing.T) {
			testkit.CheckFDs(t)
			h := newHost(t)
			l := h.dial()
			l.post(t, head(a.cmd, 0), []byte(a.body))
			if r, err := l.Receive(); err != nil || r.Flags&vfiouser.FlagError == 0 {
				t.Errorf("answer: %+v, %v", r, err)
			}
			if err := l.Wait(); !errors.Is(err, vfiouser.ErrBadMessage) || !strings.Contains(err.Error(), a.says) {
				t.Errorf("Serve: %v, wanted %q", err, a.says)
			}
			l.Close()
			h.servesAnother()
		})
	}
}

// Of the descriptors that the client sends, this process keeps only the eventfd that the device has at the end.
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
		for _, body := range [][]byte{nil, zeros(16), zeros(20), zeros(24), zeros(32), dmaMap(3, 0, 0, 8192),
			irqSet(0x24, 2, 0, 2)} {
			_, _ = l.Request(cmd, body, -1, e.FD(), m.FD())
			_, _ = l.Request(cmd, body, -1, m.FD())
		}
	}
	_, _ = l.Request(vfiouser.CmdDMAUnmap, dmaUnmap(2, 0, 0), -1)
	for range 100 {
		must(t, l.SetIRQ(vfiouser.IRQMSIX, 1, e))
	}
	if n := len(testkit.FDs()); n != before+1 {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	h.works(l, guestIOVA)
}
