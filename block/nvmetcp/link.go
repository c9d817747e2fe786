package nvmetcp

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
)

const connectName = "Connect"

// minMaxH2C is the smallest allowed MAXH2CDATA (TCP 3.6.2.3).
const minMaxH2C = 4096

// link executes commands on a queue's connection, one at a time: all commands of the admin queue, and Connect of the
// I/O queue.
type link struct {
	c       devmem.Conn
	timeout time.Duration // of open, and of each command
	cid     uint16

	align  int // PDO in PDUs of the host is a multiple of this
	maxH2C uint32

	buf [icLen + identifyLen]byte // the PDU that receive has read last
}

func ended(during string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: the target closed the connection: %w", during, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%s: %w", during, err)
}

// open exchanges ICReq and ICResp (TCP 3.3), and sets align and maxH2C. It asks for HPDA 0, which Linux's target
// requires.
func (l *link) open() error {
	const during = "initialize connection"
	if err := l.c.SetDeadline(time.Now().Add(l.timeout)); err != nil {
		return err
	}
	var b [icLen]byte
	req := icReq{common: common{Type: typeICReq, HLen: icLen, PLen: icLen}}
	req.encode(&b)
	if _, err := l.c.Write(b[:]); err != nil {
		return ended(during, err)
	}
	h, err := l.receive(during)
	if err != nil {
		return err
	}
	if h.Type != typeICResp || h.HLen != icLen || h.PLen != icLen {
		return fmt.Errorf("%s: %w", during, violation("%v of HLEN %d, PLEN %d, not an ICResp of %d", h.Type, h.HLen, h.PLen,
			icLen))
	}
	var r icResp
	r.decode((*[icLen]byte)(l.buf[:]))
	switch {
	case r.PFV != 0:
		err = violation("ICResp: PFV %d, which was not asked for", r.PFV)
	case r.Digest != 0:
		err = violation("ICResp: DGST %#x: digests, which were not asked for", r.Digest)
	case r.CPDA > 31:
		err = violation("ICResp: CPDA %d, more than 31", r.CPDA)
	case r.MaxH2C < minMaxH2C || r.MaxH2C%wordLen != 0:
		err = violation("ICResp: MAXH2CDATA %d, not a multiple of %d from %d on", r.MaxH2C, wordLen, minMaxH2C)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", during, err)
	}
	l.align, l.maxH2C = wordLen*(int(r.CPDA)+1), r.MaxH2C
	return nil
}

// receive reads a PDU to buf, and returns its common header. A C2HTermReq is an error (EPROTO).
func (l *link) receive(during string) (h common, err error) {
	if _, err := io.ReadFull(l.c, l.buf[:commonLen]); err != nil {
		return h, ended(during, err)
	}
	h.decode((*[commonLen]byte)(l.buf[:]))
	if h.PLen < headLen || h.PLen > uint32(len(l.buf)) {
		return h, fmt.Errorf("%s: %w", during, violation("%v: PLEN %d, not %d to %d", h.Type, h.PLen, headLen, len(l.buf)))
	}
	if _, err := io.ReadFull(l.c, l.buf[commonLen:h.PLen]); err != nil {
		return h, ended(during, err)
	}
	if h.Type == typeC2HTermReq {
		var t termReq
		t.decode((*[headLen]byte)(l.buf[:]))
		return h, fmt.Errorf("%s: the target ends the connection: %s: %w", during, t.say(l.buf[headLen:h.PLen]),
			syscall.EPROTO)
	}
	return h, nil
}

// do executes a command. Its capsule carries the bytes of out. The target must send as many bytes as in has, and do
// copies them to in. Each of the two may be empty. If the target refuses the command, do returns a *commandError.
func (l *link) do(name string, s *sqe, out, in []byte) (result uint64, err error) {
	if err := l.c.SetDeadline(time.Now().Add(l.timeout)); err != nil {
		return 0, err
	}
	l.cid++
	s.setCID(l.cid)
	head := common{Type: typeCapsuleCmd, HLen: commandLen, PLen: commandLen}
	if len(out) > 0 {
		head.PDO = uint8(roundUp(commandLen, l.align))
		head.PLen = uint32(int(head.PDO) + len(out))
		s.setSGL(sglInCapsule, uint32(len(out)))
	} else {
		s.setSGL(sglTransport, uint32(len(in)))
	}
	b := make([]byte, head.PLen)
	head.encode((*[commonLen]byte)(b))
	copy(b[commonLen:], s[:])
	copy(b[head.PDO:], out) // without data PDO is 0, and nothing is copied
	if _, err := l.c.Write(b); err != nil {
		return 0, ended(name, err)
	}
	for got := 0; ; {
		h, err := l.receive(name)
		if err != nil {
			return 0, err
		}
		if err := h.check(); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		switch h.Type {
		case typeC2HData:
			n, last, err := l.data(&h, in[got:], got)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			if got += n; last {
				return 0, nil
			}
		case typeCapsuleResp:
			return l.answer(name, got == len(in))
		default:
			return 0, fmt.Errorf("%s: %w", name, violation("%v, which does not belong there", h.Type))
		}
	}
}

// data copies the data of the C2HData in buf to room, and returns the number of its bytes; off is the expected offset
// in the command's data. last means that no CapsuleResp follows.
func (l *link) data(h *common, room []byte, off int) (n int, last bool, err error) {
	var p transfer
	p.decode((*[headLen]byte)(l.buf[:]))
	switch {
	case p.CID != l.cid:
		return 0, false, violation("C2HData: CCCID %#04x, not %#04x", p.CID, l.cid)
	case uint64(p.Len) != uint64(h.PLen)-uint64(h.PDO):
		return 0, false, violation("C2HData: DATAL %d in a PDU that holds %d", p.Len, h.PLen-uint32(h.PDO))
	case uint64(p.Off) != uint64(off) || uint64(p.Len) > uint64(len(room)):
		return 0, false, violation("C2HData: bytes [%d, +%d), not [%d, +%d)", p.Off, p.Len, off, len(room))
	}
	n = copy(room, l.buf[h.PDO:h.PLen])
	if p.Flags&flagSuccess != 0 && (p.Flags&flagLast == 0 || n < len(room)) {
		return 0, false, violation("C2HData: SUCCESS before the end")
	}
	return n, p.Flags&flagSuccess != 0, nil
}

// answer checks the CapsuleResp in buf, and returns its result; whole means that all data has arrived.
func (l *link) answer(name string, whole bool) (uint64, error) {
	var r response
	r.decode((*[headLen]byte)(l.buf[:]))
	switch {
	case r.CID != l.cid:
		return 0, fmt.Errorf("%s: %w", name, violation("CapsuleResp: CID %#04x, not %#04x", r.CID, l.cid))
	case !r.Status.ok():
		return r.Result, &commandError{name, r.Status, r.Result}
	case !whole:
		return 0, fmt.Errorf("%s: %w", name, violation("CapsuleResp: success without all of the data"))
	}
	return r.Result, nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
