package nvmetcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Invariant: nvmetcp: Reads store their data at its place and writes send it from there, for any
// size, depth and order.
func TestReadsAndWrites(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			r := newRig(t, v.script)
			r.conf.Copy = v.copies
			if v.cut {
				r.conf.Device = &cutDevice{Device: r.dev, random: rand.New(rand.NewPCG(4, 5))}
			}
			if v.pool > 0 {
				r.conf.Pool = testkit.Must(r.dev.Register(0, dataSize, v.pool))(t)
			}
			d := r.open(t)
			for _, c := range []struct {
				bs       uint64
				depth, n int
			}{{512, 1, 20}, {512, 64, 300}, {1536, 7, 60}, {4096, 64, 200}, {16 << 10, 16, 40}, {16<<10 + 512, 16, 40},
				{128 << 10, 32, 40}, {1 << 20, 2, 7}} {
				depth := c.depth
				if v.script.gather > 0 {
					depth = max(depth, v.script.gather)
				}
				for k, write := range []func(i int) bool{
					func(int) bool { return false }, func(int) bool { return true },
					func(i int) bool { return i*7%5 < 2 },
				} {
					n := min(c.n, int(testStore/c.bs)-1)
					if k == 2 {
						n = min(n, 50)
					}
					r.play(t, d, c.bs, depth, n, write)
				}
			}
			s := d.Stats()
			if v.copies != (s.HostBytes > 0) || v.copies != (s.Looked == 0) || v.copies != (s.Looks == 0) || s.Messages == 0 {
				t.Errorf("%+v", s)
			}
			if v.script.seed > 0 && r.target.orders == 0 {
				t.Error("the target answered all commands as they came")
			}
			if !v.copies {
				testkit.Equal(t, "bytes received in host memory behind the rule", s.HostBytes, 0)
			}
		})
	}
}

func TestDeepAndLarge(t *testing.T) {
	r := newRig(t, script{})
	d := r.open(t)
	for _, write := range []bool{false, true} {
		r.play(t, d, 1<<20, 7, 7, func(int) bool { return write }) // play finds room for 7 in the store
	}
	spoil(r.data())
	n, good := 0, 0
	testkit.OK(t, d.Do(t.Context(), 64, func() (block.Op, bool) {
		n++
		return block.Op{Off: uint64(n%7) << 20, Len: 1 << 20, Mem: uint64(n-1)*(1<<20+4096) + 8}, n <= 64
	}, func(x block.Done) {
		if x.Err == nil && bytes.Equal(r.data()[x.Mem:][:x.Len], original[x.Off:][:x.Len]) {
			good++
		}
		spoil(r.data()[x.Mem:][:x.Len])
	}))
	testkit.Equal(t, "operations", good, 64)
	clean(t, "all of the data", r.data())
}

// Invariant: nvmetcp: Of data read in blocks of 128 KiB less than 0.1 % is read by the CPU, if the
// target sends one C2HData for a command.
func TestFewBytesAreLookedAt(t *testing.T) {
	r := newRig(t, script{})
	d := r.open(t)
	r.play(t, d, 128<<10, 16, 60, func(int) bool { return false })
	if s := d.Stats(); s.Looked*1000 >= s.Read || s.Looked < 60*headLen {
		t.Errorf("%+v", s)
	}
	looked := r.conf.Memory.Stats().Looked
	testkit.Equal(t, "bytes that the memory says were looked at", looked, d.Stats().Looked)
}

// Invariant: nvmetcp: If all operations of a Do have one length, and the target sends one C2HData
// for a command, the CPU reads only headers.
func TestOnlyHeadsAreLookedAt(t *testing.T) {
	for _, v := range []script{{}, {refuseCATTR: true}} {
		r := newRig(t, v)
		d := r.open(t)
		for _, bs := range []uint64{4096, 512, 16 << 10, 4096} {
			for _, write := range []func(i int) bool{
				func(int) bool { return true }, func(int) bool { return false }, func(i int) bool { return i*7%5 < 2 },
				func(i int) bool { return i > 50 }, func(i int) bool { return i < 50 },
			} {
				r.play(t, d, bs, 32, 100, write)
				if s := d.Stats(); s.Looked != s.Messages*headLen || s.Messages == 0 {
					t.Fatalf("blocks of %d: %+v", bs, s)
				}
			}
		}
	}
}

func TestInfo(t *testing.T) {
	r := newRig(t, script{mqes: 31, ctrl: func(ctrl, ns []byte) {
		ctrl[77] = 4 // MDTS: 64 KiB
		ns[99] = 1
		copy(ctrl[24:], "Model\x01 \x00")
	}})
	d := r.open(t)
	want := block.Info{Size: testStore, BlockSize: 512, MaxTransfer: 64 << 10, MaxDepth: 31, ReadOnly: true,
		Name: "Model? (" + testNQN + ")"}
	got := d.Info()
	got.Name = got.Name[:6] + got.Name[len(got.Name)-len(testNQN)-3:]
	testkit.Equal(t, "info", got, want)
	errs := r.each(d, []block.Op{{Len: 64<<10 + 512}, {Write: true, Len: 512}, {Len: 100}, {Off: testStore, Len: 512},
		{Len: 512, Mem: dataSize - 511}, {Len: 512}})
	for i, want := range []error{syscall.EINVAL, syscall.EROFS, syscall.EINVAL, syscall.EIO, syscall.EFAULT} {
		testkit.ErrorIs(t, errs[i], want)
	}
	testkit.OK(t, errs[5])
	testkit.ErrorIs(t, d.Do(t.Context(), 0, nil, nil), syscall.EINVAL)

	r.target.behave(script{ctrl: func(ctrl, _ []byte) { le.PutUint16(ctrl[514:], 9) }}) // MAXCMD is 9
	testkit.OK(t, d.Close())
	r.conf.HostNQN = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff"
	d = r.open(t)
	testkit.Equal(t, "depth", d.Info().MaxDepth, 9)
	testkit.Equal(t, "transfer", d.Info().MaxTransfer, 4<<20)
	testkit.Equal(t, "host ID", fmt.Sprintf("%x", hostID(r.conf.HostNQN)), "00112233445566778899aabbccddeeff")
	if a, b := randomNQN(), randomNQN(); a == b || len(a) != len(r.conf.HostNQN) {
		t.Errorf("random NQNs %q and %q", a, b)
	}
}

// each performs operations, at most 4 at a time, and returns the error of each, joined with Do's error.
func (r *rig) each(d *Device, ops []block.Op) []error {
	errs := make([]error, len(ops))
	byMem := make(map[block.Op]int)
	i := 0
	err := d.Do(context.Background(), 4, func() (block.Op, bool) {
		if i == len(ops) {
			return block.Op{}, false
		}
		byMem[ops[i]] = i
		i++
		return ops[i-1], true
	}, func(x block.Done) { errs[byMem[x.Op]] = x.Err })
	if err != nil {
		for i := range errs {
			errs[i] = errors.Join(errs[i], err)
		}
	}
	return errs
}

// An operation that the target refuses fails, and other operations of the same Do succeed.
func TestStatusOfAnOperation(t *testing.T) {
	stat := map[uint64]status{8: 0x4080, 16: 0x0281, 24: 0x4020, 32: 0x6006, 40: 0x4081, 48: 0x0082,
		56: 0x4182, 64: 0x0777}
	r := newRig(t, script{fail: func(c *command) status { return stat[c.lba] }})
	d := r.open(t)
	var ops []block.Op
	for i := range uint64(10) {
		ops = append(ops, block.Op{Off: i * 4096, Len: 4096, Mem: i * 4096, Write: i == 3 || i == 5 || i == 7 || i == 9})
	}
	big := block.Op{Off: 8 * 512, Len: 64 << 10, Mem: 1 << 20, Write: true} // the target refuses it without an R2T
	ops = append(ops, big)
	errs := r.each(d, ops)
	for i, want := range map[int]struct {
		errno error
		text  string
	}{
		1: {syscall.EIO, "read of 4096 bytes at 4096: opcode 0x02, LBA 8: generic status 0x80, LBA out of range, " +
			"do not retry (0x4080)"},
		2: {syscall.EIO, "media status 0x81, unrecovered read error (0x0281)"},
		3: {syscall.EROFS, "opcode 0x01, LBA 24: generic status 0x20, namespace is write protected"},
		4: {syscall.EIO, "internal error"}, 5: {syscall.ENOSPC, "capacity exceeded"},
		6: {syscall.EAGAIN, "namespace not ready"},
		7: {syscall.EROFS, "command specific status 0x82, attempted write to read only range"},
		8: {syscall.EIO, "vendor specific status 0x77, unknown (0x0777)"}, 10: {syscall.ENOSPC, "LBA out of range"},
	} {
		e := (*block.OpError)(nil)
		if !errors.As(errs[i], &e) || e.Op != ops[i] {
			t.Errorf("operation %d: %v", i, errs[i])
		}
		testkit.ErrorIs(t, errs[i], want.errno)
		testkit.ErrorSays(t, errs[i], want.text)
	}
	testkit.OK(t, errors.Join(errs[0], errs[9]))
	if !bytes.Equal(r.data()[:4096], original[:4096]) {
		t.Error("the operation beside them has other bytes")
	}
	// A read that the target refuses after some of its data fails, too, and does not count in Stats.Read.
	r.target.behave(script{answer: func(q *ioServer, c *command) bool {
		c2h(q.c, 0, c.cid, 0, original[:512], 0)
		respond(q.c, c.cid, 0x0281, 0)
		return true
	}})
	testkit.OK(t, d.Close())
	d = r.open(t)
	testkit.ErrorIs(t, r.each(d, []block.Op{{Len: 4096}})[0], syscall.EIO)
	testkit.Equal(t, "bytes read", d.Stats().Read, 0)
}

// An Open that fails returns an error that names the reason, and leaks no goroutine or file descriptor.
func TestOpenRefusals(t *testing.T) {
	r := newRig(t, script{})
	ctx := context.Background()
	for _, c := range []struct {
		change func(c *Config)
		want   error
	}{
		{func(c *Config) { c.Memory = nil }, syscall.EINVAL}, {func(c *Config) { c.Pool = nil }, syscall.EINVAL},
		{func(c *Config) { c.NQN = "" }, syscall.EINVAL}, {func(c *Config) { c.NQN = discovery }, syscall.EINVAL},
		{func(c *Config) { c.NQN = "a\x00b" }, syscall.EINVAL}, {func(c *Config) { c.Depth = 1024 }, syscall.EINVAL},
		{func(c *Config) { c.Depth = -1 }, syscall.EINVAL}, {func(c *Config) { c.Target = netip.AddrPort{} }, syscall.EINVAL},
		{func(c *Config) { c.Timeout = -1 }, syscall.EINVAL},
		{func(c *Config) { c.Namespace = allNSIDs }, syscall.EINVAL}, {func(c *Config) { c.Queue = 0 }, syscall.ERANGE},
		{func(c *Config) { c.Namespace = 2 }, syscall.ENODEV}, {func(c *Config) { c.NQN += "x" }, syscall.EINVAL},
		{func(c *Config) { c.Target = r.free(t) }, syscall.ECONNREFUSED},
	} {
		conf := r.conf
		c.change(&conf)
		err := testkit.Err(Open(ctx, conf))
		testkit.ErrorIs(t, err, c.want)
		if c.want == syscall.ECONNREFUSED {
			testkit.ErrorSays(t, err, "no server listens at its port")
		}
	}
	for _, c := range []struct {
		name   string
		script script
		want   error
		says   string
	}{
		{"host", script{connect: 0x4184}, syscall.EACCES, "Connect: command specific status 0x84, invalid host"},
		{"busy", script{connect: 0x0181}, syscall.EBUSY, "controller busy (0x0181)"},
		{"format", script{connect: 0x4180}, syscall.EPROTONOSUPPORT, "incompatible format"},
		{"SGL", script{connect: 0x4016}, syscall.EINVAL, "Connect: generic status 0x16, SGL offset invalid"},
		{"discovery", script{ctrl: func(c, _ []byte) { c[111] = 2 }}, syscall.EMEDIUMTYPE, "discovery"},
		{"SUBNQN", script{ctrl: func(c, _ []byte) { c[768] = 'x' }}, block.ErrProtocol, "SUBNQN"},
		{"SGLS", script{ctrl: func(c, _ []byte) { c[536] = 0 }}, syscall.EOPNOTSUPP, "no SGLs"},
		{"metadata", script{ctrl: func(_, n []byte) { n[128] = 8 }}, syscall.EOPNOTSUPP, "8 bytes of metadata"},
		{"protection", script{ctrl: func(_, n []byte) { n[29] = 1 }}, syscall.EOPNOTSUPP,
			"protection information of type 1"},
		{"LBADS", script{ctrl: func(_, n []byte) { n[130] = 8 }}, block.ErrProtocol, "LBADS 8"},
		{"NSZE", script{ctrl: func(_, n []byte) { n[7] = 0xff }}, block.ErrProtocol, "NSZE"},
		{"inactive", script{ctrl: func(_, n []byte) { clear(n) }}, syscall.ENODEV, "not active"},
		{"small MDTS", script{ctrl: func(c, n []byte) { c[77], n[130] = 1, 14 }}, syscall.EOPNOTSUPP, "less than a block"},
		{"PFV", script{icResp: func(r *icResp) { r.PFV = 1 }}, block.ErrProtocol, "PFV 1"},
		{"digest", script{icResp: func(r *icResp) { r.Digest = 1 }}, block.ErrProtocol, "digests"},
		{"CPDA", script{icResp: func(r *icResp) { r.CPDA = 32 }}, block.ErrProtocol, "CPDA 32"},
		{"MAXH2CDATA", script{icResp: func(r *icResp) { r.MaxH2C = 4092 }}, block.ErrProtocol, "MAXH2CDATA 4092"},
		{"ICResp", script{icResp: func(r *icResp) { r.Type = typeR2T }}, block.ErrProtocol, "not an ICResp"},
		{"PLEN", script{icResp: func(r *icResp) { r.PLen = 1 << 30 }}, block.ErrProtocol, "PLEN 1073741824"},
		{"closed", script{admin: func(c net.Conn, _ uint8) bool { return c.Close() == nil }}, nil, "closed the connection"},
		{"CSTS", script{admin: func(c net.Conn, opcode uint8) bool {
			if opcode == opFabrics {
				respond(c, 2, 0, cstsFatal)
				respond(c, 3, 0, cstsFatal)
				respond(c, 4, 0, cstsFatal)
			}
			return true
		}}, syscall.EIO, "the controller has failed: CSTS 0x2"},
		{"term", script{admin: func(c net.Conn, opcode uint8) bool { return terminate(c, 6, 12, typeICReq) }},
			syscall.EPROTO, "FES 0x6, unsupported parameter of our ICReq: MAXR2T at offset 12"},
		{"CID", script{admin: func(c net.Conn, _ uint8) bool { respond(c, 99, 0, 0); return true }}, block.ErrProtocol,
			"CID 0x0063"},
		{"R2T", script{admin: func(c net.Conn, _ uint8) bool {
			(&ioServer{c: c.(*net.TCPConn)}).r2t(2, 0, 0, 9)
			return true
		}}, block.ErrProtocol, "R2T, which does not belong there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.target.behave(c.script)
			d, err := Open(ctx, r.conf)
			if d != nil || err == nil {
				t.Fatal(d, err)
			}
			if c.want != nil {
				testkit.ErrorIs(t, err, c.want)
			}
			testkit.ErrorSays(t, err, c.says, "nvme/tcp: "+testNQN)
		})
	}
	// After an invalid answer to Identify, Open returns block.ErrProtocol.
	for says, p := range map[string]transfer{
		"CCCID 0x0009":              {CID: 9, Len: 512},
		"bytes [512, +512)":         {CID: 5, Off: 512, Len: 512},
		"bytes [0, +4100)":          {CID: 5, Len: 4100},
		"DATAL 4":                   {CID: 5, Len: 4, common: common{PLen: 512 + headLen}},
		"SUCCESS before":            {CID: 5, Len: 4, common: common{Flags: flagSuccess}},
		"success without all of":    {CID: 5, Len: 4},
		"digests, which were not":   {CID: 5, Len: 4, common: common{Flags: flagDDGST}},
		"PDO 25, not a multiple of": {CID: 5, Len: 4, common: common{PDO: 25}},
	} {
		r.target.behave(script{admin: func(c net.Conn, opcode uint8) bool {
			if opcode != opIdentify {
				return false
			}
			p.Type, p.HLen = typeC2HData, headLen
			if p.PDO == 0 {
				p.PDO = headLen
			}
			if p.PLen == 0 {
				p.PLen = uint32(p.PDO) + p.Len
			}
			b := make([]byte, p.PLen)
			p.encode((*[headLen]byte)(b))
			_, _ = c.Write(b)
			respond(c, 5, 0, 0)
			return true
		}})
		err := testkit.Err(Open(ctx, r.conf))
		testkit.ErrorIs(t, err, block.ErrProtocol)
		testkit.ErrorSays(t, err, says)
	}
	r.target.behave(script{admin: func(net.Conn, uint8) bool { return true }})
	conf := r.conf
	conf.Timeout = 50 * time.Millisecond
	testkit.ErrorIs(t, testkit.Err(Open(ctx, conf)), os.ErrDeadlineExceeded)
	asked := make(chan bool, 1)
	r.target.behave(script{admin: func(net.Conn, uint8) bool { asked <- true; return true }})
	short, cancel := context.WithCancelCause(ctx)
	go func() {
		<-asked
		cancel(errTest)
	}()
	testkit.ErrorIs(t, testkit.Err(Open(short, r.conf)), errTest)
	r.target.behave(script{})
	d := r.open(t)
	testkit.OK(t, r.each(d, []block.Op{{Len: 4096}})[0])
}

// The host identifier is the UUID of the host's NQN, or made from an NQN without one.
func TestHostIdentifier(t *testing.T) {
	id := hostID(uuidNQN + "00112233-4455-6677-8899-aabbccddeeff")
	testkit.Equal(t, "of a UUID", fmt.Sprintf("%x", id), "00112233445566778899aabbccddeeff")
	a, b := hostID("nqn.2026-01.org.example:a"), hostID("nqn.2026-01.org.example:b")
	if a != hostID("nqn.2026-01.org.example:a") || a == b || a == [16]byte{} {
		t.Errorf("of names: %x, %x", a, b)
	}
}

func (r *rig) free(t *testing.T) netip.AddrPort {
	_, from := testkit.Loopback()
	ln := testkit.Must(net.Listen("tcp4", from.String()+":0"))(t)
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func terminate(c net.Conn, fes uint16, fei uint32, about pduType) bool {
	b := make([]byte, headLen+8)
	p := termReq{common: common{Type: typeC2HTermReq, HLen: headLen, PLen: uint32(len(b))}, FES: fes, FEI: fei}
	p.encode((*[headLen]byte)(b))
	b[headLen] = byte(about)
	_, _ = c.Write(b)
	return true
}

// The end of its context ends Do, and the Device has failed then. A Do whose context has ended before does not begin.
func TestContextEndsDo(t *testing.T) {
	came := make(chan bool, 64)
	r := newRig(t, script{answer: func(_ *ioServer, c *command) bool { came <- true; return c.n >= 2 }})
	d := r.open(t)
	testkit.OK(t, r.each(d, []block.Op{{Len: 4096}})[0])
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.ErrorIs(t, d.Do(ended, 1, nil, nil), context.Canceled)
	testkit.OK(t, r.each(d, []block.Op{{Len: 4096, Write: true}})[0])
	<-came
	<-came
	ctx, stop := context.WithCancelCause(t.Context())
	go func() {
		<-came
		<-came
		stop(errTest)
	}()
	n, done := 0, 0
	err := d.Do(ctx, 2, func() (block.Op, bool) {
		n++
		return block.Op{Len: 512, Mem: uint64(n) * 512, Write: n == 1}, n < 3
	}, func(x block.Done) {
		done++
		testkit.ErrorIs(t, x.Err, errTest)
	})
	testkit.ErrorIs(t, err, errTest)
	testkit.Equal(t, "operations that ended", done, 2)
	testkit.ErrorIs(t, d.Do(t.Context(), 1, nil, nil), errTest)
}

func TestCloseEndsDo(t *testing.T) {
	came := make(chan bool, 64)
	r := newRig(t, script{answer: func(*ioServer, *command) bool { came <- true; return true }})
	d := r.open(t)
	closed := make(chan error, 1)
	go func() {
		<-came
		closed <- d.Close()
	}()
	errs := r.each(d, []block.Op{{Len: 4096}, {Len: 64 << 10, Mem: 4096, Write: true}})
	testkit.ErrorIs(t, errs[0], net.ErrClosed)
	testkit.ErrorIs(t, errs[1], net.ErrClosed)
	testkit.OK(t, <-closed)
	testkit.OK(t, d.Close())
	testkit.ErrorIs(t, d.Do(t.Context(), 1, nil, nil), net.ErrClosed)
}
