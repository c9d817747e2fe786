package nvmetcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

const (
	testNQN    = "nqn.2026-11.dev.vnic:test"
	testIOCCSZ = 1028 // units of 16 bytes: an SQE of 64 bytes and 16 KiB of data, as in Linux's target
	testMaxH2C = 4 << 20
	testBlock  = 512
	testStore  = 8 << 20
	testCNTLID = 7
	maxTestPDU = 8 << 20
)

// script is the behaviour of a target. The zero script is modelled on Linux's target.
type script struct {
	piece       int    // the most data bytes of a C2HData; 0: all of a read's
	pad         int    // bytes between header and data of a read's C2HData
	r2t         int    // the most bytes that an R2T requests; 0: all that are missing
	seed        uint64 // seed of the random order of answers; 0: in order; without effect if serial
	gather      int    // commands that must arrive before the first answer, at least one; without effect if serial
	serial      bool   // receive nothing on the I/O queue while sending
	refuseCATTR bool
	cpda        uint8
	icdoff      uint16
	maxH2C      uint32 // 0: testMaxH2C
	ioccsz      uint32 // 0: testIOCCSZ; 4: no data in a capsule
	mqes        uint16 // 0: 1023
	connect     status // of the response to each Connect; 0: mayConnect checks the command
	idle        bool   // never ready

	fail   func(c *command) status            // returns the status of a read or write; 0: success
	answer func(q *ioServer, c *command) bool // replaces the usual answer unless it returns false
	ctrl   func(controller, namespace []byte)
	admin  func(c net.Conn, opcode uint8) bool // replaces the usual answer unless it returns false
	icResp func(r *icResp)
}

// target is an NVMe/TCP target for tests. It behaves as its script says.
type target struct {
	t     testing.TB
	ln    *net.TCPListener
	work  sync.WaitGroup
	store []byte

	mu     sync.Mutex
	script script
	conns  map[net.Conn]bool
	orders int // answers, or R2Ts, to a command before one to an earlier command
	quiet  bool
}

func newTarget(t testing.TB, s script) *target {
	a, _ := testkit.Loopback()
	ln := testkit.Must(net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))))(t)
	g := &target{t: t, ln: ln, script: s, store: bytes.Clone(original), conns: make(map[net.Conn]bool)}
	g.work.Go(func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			g.mu.Lock()
			g.conns[c] = true
			g.mu.Unlock()
			g.work.Go(func() {
				defer func() {
					g.mu.Lock()
					delete(g.conns, c)
					g.mu.Unlock()
					_ = c.Close()
				}()
				g.serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		g.mu.Lock()
		for c := range g.conns {
			_ = c.Close()
		}
		g.mu.Unlock()
		g.work.Wait()
	})
	return g
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	for off := 0; off+8 <= len(b); off += 8 {
		le.PutUint64(b[off:], r.Uint64())
	}
}

func (g *target) addr() netip.AddrPort { return g.ln.Addr().(*net.TCPAddr).AddrPort() }

// behave sets the script of later connections.
func (g *target) behave(s script) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.script = s
}

type command struct {
	sqe     sqe
	opcode  uint8
	cid     uint16
	kind    uint8 // type and subtype of its SGL
	length  uint32
	data    []byte // from the capsule, or of a write the data of the H2CDatas
	n       int
	write   bool
	lba     uint64
	got     int    // bytes of a write that have arrived
	tag     uint16 // of the outstanding R2T
	waiting int    // bytes of the outstanding R2T that have not arrived
}

func (g *target) wrong(format string, args ...any) {
	g.mu.Lock()
	quiet := g.quiet
	g.mu.Unlock()
	if !quiet {
		g.t.Errorf("target: "+format, args...)
	}
}

func receive(r io.Reader) (h common, b []byte, err error) {
	var head [commonLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return h, nil, err
	}
	h.decode(&head)
	if h.PLen < commonLen || h.PLen > maxTestPDU {
		return h, nil, fmt.Errorf("%v of %d bytes", h.Type, h.PLen)
	}
	b = make([]byte, h.PLen)
	copy(b, head[:])
	_, err = io.ReadFull(r, b[commonLen:])
	return h, b, err
}

func (g *target) capsule(h common, b []byte, align, icdoff int) *command {
	if h.Type != typeCapsuleCmd || h.HLen != commandLen || len(b) < commandLen {
		g.wrong("%v of HLEN %d in the place of a command", h.Type, h.HLen)
		return nil
	}
	c := &command{sqe: sqe(b[commonLen:commandLen])}
	c.opcode, c.cid = c.sqe[0], le.Uint16(c.sqe[2:])
	c.length, c.kind = le.Uint32(c.sqe[32:]), c.sqe[39]
	if c.sqe[1] != usesSGL || le.Uint64(c.sqe[24:]) != 0 {
		g.wrong("flags %#x, SGL address %#x", c.sqe[1], le.Uint64(c.sqe[24:]))
	}
	if c.kind == sglInCapsule {
		if want := roundUp(commandLen+icdoff, align); int(h.PDO) != want || len(b) != want+int(c.length) {
			g.wrong("%d bytes in a capsule of %d from %d on, not from %d", c.length, len(b), h.PDO, want)
			return nil
		}
		c.data = b[h.PDO:]
	} else if len(b) != commandLen {
		g.wrong("a command of %d bytes without data", len(b))
	}
	return c
}

func respond(w io.Writer, cid uint16, st status, result uint64) {
	var b [headLen]byte
	r := response{common: common{Type: typeCapsuleResp, HLen: headLen, PLen: headLen}, Result: result, SQHead: 0xffff,
		CID: cid, Status: st}
	r.encode(&b)
	_, _ = w.Write(b[:])
}

func c2h(w io.Writer, flags uint8, cid uint16, off int, data []byte, pad int) {
	var b [headLen]byte
	p := transfer{common: common{Type: typeC2HData, Flags: flags, HLen: headLen, PDO: uint8(headLen + pad),
		PLen: uint32(headLen + pad + len(data))}, CID: cid, Off: uint32(off), Len: uint32(len(data))}
	p.encode(&b)
	_, _ = w.Write(append(append(b[:], make([]byte, pad)...), data...))
}

func (g *target) serve(c *net.TCPConn) {
	g.mu.Lock()
	s := g.script
	g.mu.Unlock()
	r := bufio.NewReaderSize(c, 64<<10)
	h, b, err := receive(r)
	if err != nil {
		return
	}
	if h.Type != typeICReq || len(b) != icLen || b[10] != 0 || b[11] != 0 {
		g.wrong("ICReq: % x", b)
		return
	}
	resp := icResp{common: common{Type: typeICResp, HLen: icLen, PLen: icLen}, CPDA: s.cpda, MaxH2C: s.maxH2C}
	if resp.MaxH2C == 0 {
		resp.MaxH2C = testMaxH2C
	}
	if s.icResp != nil {
		s.icResp(&resp)
	}
	var out [icLen]byte
	resp.encode(&out)
	_, _ = c.Write(out[:])
	align := wordLen * (int(s.cpda) + 1)
	if h, b, err = receive(r); err != nil {
		return
	}
	cmd := g.capsule(h, b, align, 0)
	if cmd == nil || cmd.opcode != opFabrics || cmd.sqe[4] != fabricsConnect || len(cmd.data) != connectLen {
		g.wrong("%+v in the place of Connect", cmd)
		return
	}
	qid := le.Uint16(cmd.sqe[42:])
	if st, result := g.mayConnect(&s, cmd); st != 0 {
		respond(c, cmd.cid, st, result)
		return
	}
	respond(c, cmd.cid, 0, testCNTLID)
	if qid == 0 {
		g.serveAdmin(c, r, &s, align)
		return
	}
	q := &ioServer{target: g, s: s, c: c, r: r, align: align, success: cmd.sqe[46]&noSQFlow != 0,
		events: make(chan *command, 1<<16), tags: make(map[uint16]*command)}
	q.serve()
}

func (g *target) mayConnect(s *script, c *command) (status, uint64) {
	nqn := string(c.data[256 : 256+len(testNQN)])
	qid, cntlid := le.Uint16(c.sqe[42:]), le.Uint16(c.data[16:])
	switch {
	case s.connect != 0:
		return s.connect, 0
	case nqn != testNQN || c.data[256+len(testNQN)] != 0:
		return 0x4182, 1<<16 | 256
	case qid == 0 && cntlid != anyCNTLID, qid == 1 && cntlid != testCNTLID, qid > 1:
		g.wrong("Connect of queue %d: CNTLID %#x", qid, cntlid)
		return 0x4182, 1<<16 | 16
	case qid == 1 && s.refuseCATTR && c.sqe[46] != 0:
		return 0x4182, 46
	case le.Uint32(c.sqe[48:]) != 0:
		g.wrong("Connect: KATO %d", le.Uint32(c.sqe[48:]))
	}
	return 0, 0
}

func (g *target) serveAdmin(c net.Conn, r io.Reader, s *script, align int) {
	props := map[uint32]uint64{propCAP: 1<<37 | 1<<24 | 1023}
	if s.mqes > 0 {
		props[propCAP] = 1<<37 | 1<<24 | uint64(s.mqes)
	}
	for {
		h, b, err := receive(r)
		if err != nil {
			return
		}
		cmd := g.capsule(h, b, align, 0)
		if cmd == nil {
			return
		}
		if s.admin != nil && s.admin(c, cmd.opcode) {
			continue
		}
		off := le.Uint32(cmd.sqe[44:])
		switch {
		case cmd.opcode == opFabrics && cmd.sqe[4] == fabricsPropertyGet:
			respond(c, cmd.cid, 0, props[off])
		case cmd.opcode == opFabrics && cmd.sqe[4] == fabricsPropertySet && off == propCC:
			switch v := le.Uint32(cmd.sqe[48:]); {
			case v&ccShutdown != 0:
				props[propCSTS] = cstsReady | cstsShutDone
			case v == ccEnable|ccSQES|ccCQES && s.idle:
			case v == ccEnable|ccSQES|ccCQES:
				props[propCSTS] = cstsReady
			default:
				g.wrong("CC %#x", v)
			}
			respond(c, cmd.cid, 0, 0)
		case cmd.opcode == opIdentify:
			ctrl, ns := s.identify()
			if cmd.sqe[40] == cnsNamespace {
				if le.Uint32(cmd.sqe[4:]) != 1 {
					respond(c, cmd.cid, 0x600b, 0)
					continue
				}
				ctrl = ns
			}
			c2h(c, flagLast, cmd.cid, 0, ctrl, 0)
			respond(c, cmd.cid, 0, 0)
		case cmd.opcode == opSetFeatures && cmd.sqe[40] == queuesFID:
			respond(c, cmd.cid, 0, 127<<16|127)
		default:
			g.wrong("admin command %#x", cmd.opcode)
			respond(c, cmd.cid, 0x4001, 0)
		}
	}
}

func (s *script) identify() (ctrl, ns []byte) {
	ctrl, ns = make([]byte, identifyLen), make([]byte, identifyLen)
	copy(ctrl[24:64], "Linux                                   ")
	ctrl[111] = 1
	le.PutUint16(ctrl[514:], 0)
	le.PutUint32(ctrl[536:], 1|1<<20)
	copy(ctrl[768:], testNQN)
	le.PutUint32(ctrl[1792:], testIOCCSZ)
	if s.ioccsz > 0 {
		le.PutUint32(ctrl[1792:], s.ioccsz)
	}
	le.PutUint16(ctrl[1800:], s.icdoff)
	le.PutUint64(ns, testStore/testBlock)
	ns[128+2] = 9
	if s.ctrl != nil {
		s.ctrl(ctrl, ns)
	}
	return ctrl, ns
}

type ioServer struct {
	target  *target
	s       script
	c       *net.TCPConn
	r       io.Reader
	align   int
	success bool // SUCCESS in a read's last C2HData replaces the response

	mu     sync.Mutex // protects tags, last, and the commands' got, tag and waiting
	tags   map[uint16]*command
	last   uint16
	events chan *command // new commands, and commands whose requested data has arrived
	n      int
}

func (q *ioServer) inCapsule() int {
	n := int(q.s.ioccsz)
	if n == 0 {
		n = testIOCCSZ
	}
	return max(16*n-sqeLen-16*int(q.s.icdoff), 0)
}

func (q *ioServer) serve() {
	if q.s.serial {
		q.serveSerial()
		return
	}
	q.target.work.Go(q.answers)
	for q.read() == nil {
	}
	close(q.events)
}

func (q *ioServer) serveSerial() {
	for q.read() == nil {
		for len(q.events) > 0 {
			q.do(<-q.events)
		}
	}
}

func (q *ioServer) read() error {
	h, b, err := receive(q.r)
	if err != nil {
		return err
	}
	if h.Type == typeH2CData {
		return q.h2c(b)
	}
	c := q.target.capsule(h, b, q.align, 16*int(q.s.icdoff))
	if c == nil {
		return io.ErrUnexpectedEOF
	}
	c.n = q.n
	q.n++
	c.write, c.lba = c.opcode == opWrite, le.Uint64(c.sqe[40:])
	blocks := uint32(le.Uint16(c.sqe[48:])) + 1
	if c.opcode != opWrite && c.opcode != opRead || blocks*testBlock != c.length || le.Uint32(c.sqe[4:]) != 1 {
		q.target.wrong("command %#x, %d blocks, %d bytes", c.opcode, blocks, c.length)
		return io.ErrUnexpectedEOF
	}
	if want := c.write && int(c.length) <= q.inCapsule(); want != (c.kind == sglInCapsule) {
		q.target.wrong("command %#x of %d bytes has an SGL of type %#x", c.opcode, c.length, c.kind)
		return io.ErrUnexpectedEOF
	}
	if c.got = len(c.data); c.write && c.got == 0 {
		c.data = make([]byte, c.length)
	}
	q.events <- c
	return nil
}

func (q *ioServer) h2c(b []byte) error {
	var p transfer
	p.decode((*[headLen]byte)(b))
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.tags[p.Tag]
	most := q.s.maxH2C
	if most == 0 {
		most = testMaxH2C
	}
	pdo := roundUp(headLen, q.align)
	switch {
	case c == nil || p.CID != c.cid:
		q.target.wrong("H2CData for command %#x, tag %#x: there is none", p.CID, p.Tag)
	case p.HLen != headLen || int(p.PDO) != pdo || int(p.PLen) != pdo+int(p.Len) || p.Len > most:
		q.target.wrong("H2CData: %+v", p)
	case int(p.Off) != c.got || int(p.Len) > c.waiting || (p.Flags&flagLast != 0) != (int(p.Len) == c.waiting):
		q.target.wrong("H2CData: %+v, where %d bytes from %d on are wanted", p, c.waiting, c.got)
	default:
		c.got += copy(c.data[c.got:], b[pdo:])
		if c.waiting -= int(p.Len); c.waiting == 0 {
			delete(q.tags, p.Tag)
			q.events <- c
		}
		return nil
	}
	return io.ErrUnexpectedEOF
}

func (q *ioServer) answers() {
	order := rand.New(rand.NewPCG(q.s.seed, 3))
	var list []*command
	for started := false; ; started = true {
		want := 1
		if !started {
			want = max(q.s.gather, 1)
		}
		for len(list) < want {
			c, ok := <-q.events
			if !ok {
				return
			}
			list = append(list, c)
		}
		for more := true; more; {
			select {
			case c, ok := <-q.events:
				if more = ok; ok {
					list = append(list, c)
				}
			default:
				more = false
			}
		}
		k := 0
		if q.s.seed > 0 {
			k = order.IntN(len(list))
		}
		if k > 0 {
			q.target.mu.Lock()
			q.target.orders++
			q.target.mu.Unlock()
		}
		c := list[k]
		list = append(list[:k], list[k+1:]...)
		q.do(c)
	}
}

func (q *ioServer) do(c *command) {
	if q.s.answer != nil && q.s.answer(q, c) {
		return
	}
	if q.s.fail != nil {
		if st := q.s.fail(c); st != 0 {
			respond(q.c, c.cid, st, 0)
			return
		}
	}
	off := int(c.lba) * testBlock
	if c.write {
		q.mu.Lock()
		got := c.got
		q.mu.Unlock()
		if got < int(c.length) {
			q.ask(c)
			return
		}
		q.target.mu.Lock()
		copy(q.target.store[off:], c.data)
		q.target.mu.Unlock()
		respond(q.c, c.cid, 0, 0)
		return
	}
	q.target.mu.Lock()
	data := append([]byte(nil), q.target.store[off:off+int(c.length)]...)
	q.target.mu.Unlock()
	q.read2host(c, data)
}

func (q *ioServer) read2host(c *command, data []byte) {
	piece := q.s.piece
	if piece == 0 {
		piece = len(data)
	}
	for off := 0; off < len(data); off += piece {
		end := min(off+piece, len(data))
		flags := uint8(0)
		if end == len(data) {
			flags = flagLast
			if q.success {
				flags |= flagSuccess
			}
		}
		c2h(q.c, flags, c.cid, off, data[off:end], q.s.pad)
	}
	if !q.success {
		respond(q.c, c.cid, 0, 0)
	}
}

func (q *ioServer) ask(c *command) {
	q.mu.Lock()
	n := int(c.length) - c.got
	if q.s.r2t > 0 {
		n = min(n, q.s.r2t)
	}
	q.last++
	c.tag, c.waiting = q.last, n
	q.tags[c.tag] = c
	off := c.got
	q.mu.Unlock()
	q.r2t(c.cid, c.tag, off, n)
}

func (q *ioServer) r2t(cid, tag uint16, off, n int) {
	var b [headLen]byte
	p := transfer{common: common{Type: typeR2T, HLen: headLen, PLen: headLen}, CID: cid, Tag: tag, Off: uint32(off),
		Len: uint32(n)}
	p.encode(&b)
	_, _ = q.c.Write(b[:])
}

var errTest = errors.New("enough")
