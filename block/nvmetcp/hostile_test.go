package nvmetcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// The number and length of attack's operations, and the distance of their memory, which leaves gaps.
const (
	hostileOps  = 8
	hostileLen  = 24 << 10 // more than a capsule of the default script holds
	hostileStep = 64 << 10
)

func hostileOp(i int) block.Op {
	return block.Op{Write: i%4 == 3, Off: uint64(i) * hostileLen, Len: hostileLen, Mem: hostileStep*uint64(i+1) + 77}
}

func twice(f func() bool) bool {
	for range 2 {
		if !f() {
			return false
		}
	}
	return true
}

// attack performs hostileOps operations. It checks that, of the first hostileStep*(hostileOps+2) bytes of Config.Data,
// only the memory of reads has changed, and, unless liar is set, checks the data of successful reads. bad is the
// number of operations that failed, err is Do's error.
func (r *rig) attack(t testing.TB, d *Device, liar bool) (bad int, err error) {
	t.Helper()
	all := r.data()[:hostileStep*(hostileOps+2)]
	spoil(all)
	for i := range hostileOps {
		if o := hostileOp(i); o.Write {
			fill(all[o.Mem:][:o.Len], uint64(i))
		}
	}
	n := 0
	done := make(map[uint64]int)
	err = d.Do(context.Background(), hostileOps, func() (block.Op, bool) {
		n++
		return hostileOp(n - 1), n <= hostileOps
	}, func(x block.Done) {
		done[x.Mem]++
		b := all[x.Mem:][:x.Len]
		switch {
		case x.Err != nil:
			bad++
		case !x.Write && !liar && !bytes.Equal(b, original[x.Off:][:x.Len]):
			t.Errorf("%v: all is well, but it has other bytes", x.Op)
		}
	})
	for i := range hostileOps {
		o := hostileOp(i)
		if done[o.Mem] != 1 && n > i {
			t.Errorf("%v was done %d times", o, done[o.Mem])
		}
		b := all[o.Mem:][:o.Len]
		if o.Write {
			want := make([]byte, o.Len)
			if fill(want, uint64(i)); !bytes.Equal(b, want) {
				t.Errorf("%v: its memory has other bytes", o)
			}
		}
		spoil(b)
	}
	clean(t, "beside the operations", all)
	return bad, err
}

// raw sends a PDU with header p and data, after change (unless nil) has edited its bytes, and returns true. It
// replaces HLen, PLen and a C2HData's PDO in p by the right values if they are 0.
func raw(q *ioServer, p transfer, data []byte, change func(b []byte)) bool {
	if p.HLen == 0 {
		p.HLen = headLen
	}
	if p.PLen == 0 {
		p.PLen = uint32(headLen + len(data))
	}
	if p.Type == typeC2HData && p.PDO == 0 {
		p.PDO = headLen
	}
	b := make([]byte, headLen, headLen+len(data))
	p.encode((*[headLen]byte)(b))
	b = append(b, data...)
	if change != nil {
		change(b)
	}
	_, _ = q.c.Write(b)
	return true
}

// Invariant: nvmetcp: A target that breaks the protocol is named in the error, and writes only the
// memory of operations.
func TestHostileTargets(t *testing.T) {
	data := original
	c2hOf := func(c *command) transfer {
		return transfer{common: common{Type: typeC2HData, Flags: flagLast | flagSuccess}, CID: c.cid, Len: c.length}
	}
	whole := func(q *ioServer, c *command, change func(p *transfer), edit func(b []byte)) bool {
		p := c2hOf(c)
		if change != nil {
			change(&p)
		}
		return raw(q, p, data[c.lba*testBlock:][:c.length], edit)
	}
	for _, c := range []struct {
		name  string
		index int // number, from 0, of the command for which what attacks; 3 is a write
		what  func(q *ioServer, c *command) bool
		says  string
		other error // the expected error; nil: ErrProtocol; errGone: one of several errors of a lost connection
	}{
		{"PLEN that is short", 2, func(q *ioServer, c *command) bool {
			return whole(q, c, nil, func(b []byte) { le.PutUint32(b[4:], 24) })
		}, "PLEN 24 with data from 24 on: there is none", nil},
		{"PLEN less than PDO", 2, func(q *ioServer, c *command) bool {
			return whole(q, c, nil, func(b []byte) { le.PutUint32(b[4:], 0) })
		}, "PLEN 0 with data from 24 on", nil},
		{"PLEN that is long", 2, func(q *ioServer, c *command) bool {
			return whole(q, c, nil, func(b []byte) { le.PutUint32(b[4:], 0xffffffff) })
		}, "DATAL 24576 in a PDU that holds 4294967271", nil},
		{"HLEN", 2, func(q *ioServer, c *command) bool {
			return whole(q, c, nil, func(b []byte) { b[2] = 25 })
		}, "C2HData: HLEN 25, not 24", nil},
		{"PDO in the head", 2, func(q *ioServer, c *command) bool {
			return whole(q, c, nil, func(b []byte) { b[3] = 20 })
		}, "C2HData: PDO 20", nil},
		{"PDO that is not aligned", 2, func(q *ioServer, c *command) bool {
			return whole(q, c, nil, func(b []byte) { b[3] = 26 })
		}, "C2HData: PDO 26", nil},
		{"digest", 2, func(q *ioServer, c *command) bool {
			return whole(q, c, nil, func(b []byte) { b[1] |= flagHDGST })
		}, "digests, which were not agreed", nil},
		{"data beyond the command's memory", 1, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeC2HData, Flags: flagLast}, CID: c.cid, Len: c.length + 4},
				data[:c.length+4], nil)
		}, "DATAL 24580, beyond the 24576 bytes that are left", nil},
		{"data in the middle", 1, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeC2HData, Flags: flagLast}, CID: c.cid, Off: 512, Len: 512},
				data[:512], nil)
		}, "DATAO 512, not 0", nil},
		{"data before", 1, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeC2HData, Flags: flagLast}, CID: c.cid, Off: 0xfffffe00, Len: 1024},
				data[:1024], nil)
		}, "DATAO 4294966784, not 0", nil},
		{"data a second time", 1, func(q *ioServer, c *command) bool {
			p := transfer{common: common{Type: typeC2HData}, CID: c.cid, Len: 512}
			return twice(func() bool { return raw(q, p, data[:512], nil) })
		}, "DATAO 0, not 512", nil},
		{"LAST too early", 1, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeC2HData, Flags: flagLast}, CID: c.cid, Len: 512}, data[:512], nil)
		}, "LAST true) with 512 bytes of the 24576", nil},
		{"no LAST", 1, func(q *ioServer, c *command) bool {
			return whole(q, c, func(p *transfer) { p.Flags = 0 }, nil)
		}, "LAST false) with 24576 bytes", nil},
		{"SUCCESS without LAST", 1, func(q *ioServer, c *command) bool {
			p := transfer{common: common{Type: typeC2HData, Flags: flagSuccess}, CID: c.cid, Len: 512}
			return raw(q, p, data[:512], nil)
		}, "SUCCESS without LAST", nil},
		{"data of an unknown command", 1, func(q *ioServer, c *command) bool {
			return whole(q, c, func(p *transfer) { p.CID = 0x03ff }, nil)
		}, "C2HData for command 0x03ff, which is not under way", nil},
		{"data of an earlier use of the slot", 1, func(q *ioServer, c *command) bool {
			return whole(q, c, func(p *transfer) { p.CID ^= 1 << slotBits }, nil)
		}, "which is not under way", nil},
		{"data of a write", 3, func(q *ioServer, c *command) bool { return whole(q, c, nil, nil) },
			"C2HData for command 0x0403 (write of 24576 bytes at 73728)", nil},
		{"data behind the answer", 1, func(q *ioServer, c *command) bool {
			return twice(func() bool { return whole(q, c, nil, nil) })
		}, "C2HData for", nil},
		{"response for an unknown command", 1, func(q *ioServer, c *command) bool {
			respond(q.c, 0x0fff, 0, 0)
			return true
		}, "CapsuleResp for command 0x0fff, which is not under way", nil},
		{"response a second time", 1, func(q *ioServer, c *command) bool {
			_ = whole(q, c, nil, nil)
			respond(q.c, c.cid, 0, 0)
			return true
		}, "CapsuleResp for", nil},
		{"response before the data", 1, func(q *ioServer, c *command) bool {
			respond(q.c, c.cid, 0, 0)
			return true
		}, "success, with 0 bytes of its data", nil},
		{"response in the middle of the data", 1, func(q *ioServer, c *command) bool {
			_ = raw(q, transfer{common: common{Type: typeC2HData}, CID: c.cid, Len: 512}, data[:512], nil)
			respond(q.c, c.cid, 0, 0)
			return true
		}, "success, with 512 bytes of its data", nil},
		{"response before R2T", 3, func(q *ioServer, c *command) bool {
			respond(q.c, c.cid, 0, 0)
			return true
		}, "success, with 0 bytes of its data", nil},
		{"response that is long", 1, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeCapsuleResp}, CID: c.cid}, data[:8], nil)
		}, "CapsuleResp: PLEN 32, not 24", nil},
		{"R2T beyond", 3, func(q *ioServer, c *command) bool { q.r2t(c.cid, 1, 0, int(c.length)+1); return true },
			"R2TL 24577, not 1 to the 24576 bytes that are left", nil},
		{"R2T of nothing", 3, func(q *ioServer, c *command) bool { q.r2t(c.cid, 1, 0, 0); return true }, "R2TL 0", nil},
		{"R2T elsewhere", 3, func(q *ioServer, c *command) bool { q.r2t(c.cid, 1, 512, 512); return true },
			"R2TO 512, not 0", nil},
		{"R2T for a read", 1, func(q *ioServer, c *command) bool { q.r2t(c.cid, 1, 0, 512); return true },
			"R2T for command 0x0401 (read of 24576 bytes at 24576)", nil},
		{"R2T of an unknown command", 3, func(q *ioServer, c *command) bool { q.r2t(0x0fff, 1, 0, 512); return true },
			"R2T for command 0x0fff", nil},
		{"ICResp", 1, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeICResp, PLen: icLen, HLen: icLen}}, data[:104], nil)
		}, "ICResp, which a target does not send here", nil},
		{"H2CData", 1, func(q *ioServer, c *command) bool {
			return whole(q, c, func(p *transfer) { p.Type = typeH2CData }, nil)
		}, "H2CData, which a target does not send here", nil},
		{"unknown type", 1, func(q *ioServer, c *command) bool {
			return whole(q, c, func(p *transfer) { p.Type = 0xee }, nil)
		}, "PDU of type 0xee", nil},
		{"end", 1, func(q *ioServer, c *command) bool { return q.c.CloseWrite() == nil },
			"the target closed the connection", io.ErrUnexpectedEOF},
		{"end in a head", 1, func(q *ioServer, c *command) bool {
			_, _ = q.c.Write(data[:7])
			return q.c.CloseWrite() == nil
		}, "the target closed the connection", io.ErrUnexpectedEOF},
		{"end in data", 1, func(q *ioServer, c *command) bool {
			p := c2hOf(c)
			p.PLen = headLen + c.length
			_ = raw(q, p, data[c.lba*testBlock:][:1000], nil)
			return q.c.CloseWrite() == nil
		}, "the target closed the connection", io.ErrUnexpectedEOF},
		{"reset", 1, func(q *ioServer, c *command) bool {
			return q.c.SetLinger(0) == nil && q.c.Close() == nil
		}, "", errGone},
		{"C2HTermReq", 3, func(q *ioServer, c *command) bool { return terminate(q.c, 1, 12, typeH2CData) },
			"FES 0x1, invalid PDU header field of our H2CData: DATAO at offset 12", syscall.EPROTO},
		{"C2HTermReq of a command", 3, func(q *ioServer, c *command) bool { return terminate(q.c, 1, 2, typeCapsuleCmd) },
			"of our CapsuleCmd: HLEN at offset 2", syscall.EPROTO},
		{"C2HTermReq of a field", 3, func(q *ioServer, c *command) bool { return terminate(q.c, 1, 47, typeCapsuleCmd) },
			"of our CapsuleCmd: SQE byte 39 at offset 47", syscall.EPROTO},
		{"C2HTermReq that says little", 3, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeC2HTermReq}, CID: 99}, nil, nil) && q.c.CloseWrite() == nil
		}, "FES 0x63, unknown", syscall.EPROTO},
		{"C2HTermReq that ends", 3, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeC2HTermReq, PLen: maxTermLen}, CID: 4}, data[:3], nil) &&
				q.c.CloseWrite() == nil
		}, "FES 0x4, data transfer out of range", syscall.EPROTO},
		{"C2HTermReq that is long", 3, func(q *ioServer, c *command) bool {
			return raw(q, transfer{common: common{Type: typeC2HTermReq, PLen: maxTermLen + 1}, CID: 4}, data[:3], nil)
		}, "PLEN 153, not 24 to 152", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, script{answer: func(q *ioServer, x *command) bool { return x.n == c.index && c.what(q, x) }})
			d := r.open(t)
			bad, err := r.attack(t, d, false)
			if err == nil || bad == 0 {
				t.Fatalf("error %v, %d operations ended with one", err, bad)
			}
			switch c.other {
			case nil:
				testkit.ErrorIs(t, err, block.ErrProtocol)
			case errGone:
				if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Error(err)
				}
			default:
				testkit.ErrorIs(t, err, c.other)
			}
			testkit.ErrorSays(t, err, c.says, "nvme/tcp: "+testNQN)
			testkit.ErrorIs(t, d.Do(t.Context(), 1, nil, nil), err)
			testkit.OK(t, d.Close())
			r.target.behave(script{})
			if bad, err := r.attack(t, r.open(t), false); err != nil || bad > 0 {
				t.Errorf("the next one: %v, %d operations failed", err, bad)
			}
		})
	}
}

var errGone = errors.New("gone")

// An R2T for data that was in the capsule makes Do fail with block.ErrProtocol, and so do many R2Ts before the first
// one's data is sent.
func TestTooManyR2T(t *testing.T) {
	r := newRig(t, script{answer: func(q *ioServer, c *command) bool { q.r2t(c.cid, 1, 0, 512); return true }})
	d := r.open(t)
	err := r.each(d, []block.Op{{Write: true, Len: 4096}})[0]
	testkit.ErrorIs(t, err, block.ErrProtocol)
	testkit.ErrorSays(t, err, "all of whose data was sent or asked for")
	testkit.OK(t, d.Close())
	r.target.behave(script{serial: true, answer: func(q *ioServer, c *command) bool {
		q.r2t(c.cid, 1, 0, 30<<20) // requests more than the sockets hold
		for off := range 100 {
			q.r2t(c.cid, 2, 30<<20+off, 1)
		}
		<-r.target.hold(q.c)
		return true
	}, ctrl: func(ctrl, ns []byte) {
		ctrl[77] = 13 // MDTS: 32 MiB
		le.PutUint64(ns, 1<<20)
	}})
	d = r.open(t)
	err = r.each(d, []block.Op{{Write: true, Len: 32 << 20}})[0]
	testkit.ErrorIs(t, err, block.ErrProtocol)
	testkit.ErrorSays(t, err, "more than one at a time (MAXR2T is 0)")
}

// If a command is queued to be sent again, and the target refuses it before it is sent, Do returns block.ErrProtocol.
func TestRefusalsOfCommandsThatWereNotSent(t *testing.T) {
	r := newRig(t, script{serial: true, answer: func(q *ioServer, c *command) bool {
		q.r2t(c.cid, 1, 0, 30<<20) // requests more than the sockets hold
		for n := range uint16(maxRetries) {
			respond(q.c, c.cid+n<<slotBits, 0x0082, 0)
		}
		<-q.target.hold(q.c)
		return true
	}, ctrl: func(ctrl, ns []byte) {
		ctrl[77] = 13 // MDTS: 32 MiB
		le.PutUint64(ns, 1<<20)
	}})
	err := r.each(r.open(t), []block.Op{{Write: true, Len: 32 << 20}})[0]
	testkit.ErrorIs(t, err, block.ErrProtocol)
	testkit.ErrorSays(t, err, "it was not sent yet")
}

// hold returns a channel that is closed when c is no longer established, or its state cannot be read.
func (g *target) hold(c *net.TCPConn) <-chan struct{} {
	gone := make(chan struct{})
	g.work.Go(func() {
		defer close(gone)
		raw, err := c.SyscallConn()
		if err != nil {
			return
		}
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for over := false; !over; <-tick.C { // TCP_INFO shows a reset although nothing reads from c
			over = true
			_ = raw.Control(func(fd uintptr) {
				i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
				over = err != nil || i.State != 1 // 1 is TCP_ESTABLISHED
			})
		}
	})
	return gone
}

// If the target sends nothing more, also within a PDU, or receives nothing, Do returns a StallError.
func TestSilence(t *testing.T) {
	for _, c := range []struct {
		name   string
		script script
	}{
		{"no answers", script{answer: func(q *ioServer, c *command) bool { return c.n > 1 }}},
		{"no end of a head", script{answer: func(q *ioServer, c *command) bool {
			if c.n == 2 {
				_, _ = q.c.Write(original[:7])
			}
			return c.n > 1
		}}},
		{"no end of data", script{answer: func(q *ioServer, c *command) bool {
			if c.n == 2 {
				p := transfer{common: common{Type: typeC2HData, PLen: headLen + c.length}, CID: c.cid, Len: c.length}
				p.Flags = flagLast
				raw(q, p, original[:100], nil)
			}
			return c.n > 1
		}}},
		{"no reading", script{serial: true, ioccsz: 1 << 20, answer: func(q *ioServer, c *command) bool {
			<-q.target.hold(q.c)
			return true
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.script)
			r.conf.Timeout = 100 * time.Millisecond
			d := r.open(t)
			var ops []block.Op
			for i := range uint64(16) {
				ops = append(ops, block.Op{Len: 4 << 20, Mem: i << 22, Write: c.name == "no reading"})
			}
			errs := r.each(d, ops)
			stalled := (*devmem.StallError)(nil)
			if err := errs[len(errs)-1]; !errors.As(err, &stalled) {
				t.Error(err)
			}
		})
	}
}

// A write that the target refuses with Do Not Retry before its data has come fails, and the Device can still be used.
func TestEarlyFailure(t *testing.T) {
	r := newRig(t, script{answer: func(q *ioServer, c *command) bool {
		if c.got == 0 && c.write {
			respondThen(q, c)
			return true
		}
		return c.write
	}})
	d := r.open(t)
	err := r.each(d, []block.Op{{Write: true, Len: 1 << 20}})[0]
	testkit.ErrorIs(t, err, syscall.ENOSPC)
	testkit.OK(t, r.each(d, []block.Op{{Len: 1 << 20}})[0])
}

// respondThen requests data of a write, all of it unless script.r2t is less, and refuses the write (Do Not Retry).
func respondThen(q *ioServer, c *command) {
	q.ask(c)
	respond(q.c, c.cid, 0x4081, 0)
}

// Devices that are opened, used and closed leave no binding.
func TestOpenAndClose(t *testing.T) {
	r := newRig(t, script{})
	for i := range 30 {
		d := testkit.Must(Open(t.Context(), r.conf))(t)
		testkit.OK(t, r.each(d, []block.Op{{Len: 4096, Write: i%2 == 1}})[0])
		testkit.OK(t, d.Close())
	}
	testkit.Equal(t, "bindings", fmt.Sprint(r.dev.Stats().Bindings), "[]")
}
