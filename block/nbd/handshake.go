package nbd

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strings"
	"syscall"

	"vnic.dev/vnic/block"
)

const (
	maxReplies  = 64
	maxReplyLen = 64 << 10
	maxShown    = 200 // the most bytes of a server's text in an error or in Info.Name
)

type export struct {
	size  uint64
	flags uint16

	minBlock, maxPayload uint32 // 0: not announced
	name, description    string
}

// handshake negotiates with the server, up to the transmission phase. It reads no byte beyond the handshake.
func handshake(c io.ReadWriter, name string) (e export, err error) {
	if len(name) > maxString {
		return e, fmt.Errorf("an export's name of %d bytes: %d at most: %w", len(name), maxString, syscall.EINVAL)
	}
	flags, err := greet(c)
	if err != nil {
		return e, fmt.Errorf("handshake: %w", err)
	}
	infos := []uint16{infoBlockSize, infoName, infoDescription}
	b := be.AppendUint32(nil, flags)
	b = be.AppendUint64(b, optMagic)
	b = be.AppendUint32(b, optGo)
	b = be.AppendUint32(b, uint32(4+len(name)+2+2*len(infos)))
	b = be.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	b = be.AppendUint16(b, uint16(len(infos)))
	for _, i := range infos {
		b = be.AppendUint16(b, i)
	}
	if _, err := c.Write(b); err != nil {
		return e, fmt.Errorf("handshake: %w", err)
	}
	exported := false
	for range maxReplies {
		typ, data, err := optReply(c)
		if err != nil {
			return e, fmt.Errorf("handshake: a reply to NBD_OPT_GO: %w", err)
		}
		switch {
		case typ&repErr != 0:
			abort := be.AppendUint32(be.AppendUint32(be.AppendUint64(nil, optMagic), optAbort), 0)
			_, _ = c.Write(abort)
			return e, refused(name, typ, data)
		case typ == repAck && !exported:
			return e, fmt.Errorf("handshake: NBD_REP_ACK without NBD_INFO_EXPORT: %w", block.ErrProtocol)
		case typ == repAck:
			return e, e.check()
		case typ != repInfo:
			return e, fmt.Errorf("handshake: a reply of type %d to NBD_OPT_GO: %w", typ, block.ErrProtocol)
		}
		kind, err := e.info(data)
		if err != nil {
			return e, fmt.Errorf("handshake: %w", err)
		}
		exported = exported || kind == infoExport
	}
	return e, fmt.Errorf("handshake: more than %d replies to NBD_OPT_GO: %w", maxReplies, block.ErrProtocol)
}

func greet(c io.Reader) (flags uint32, err error) {
	var b [18]byte
	if err := full(c, b[:8]); err != nil {
		return 0, fmt.Errorf("the greeting: %w", err)
	}
	if be.Uint64(b[:]) != initMagic {
		return 0, fmt.Errorf("the greeting begins with %q: no NBD server: %w", b[:8], block.ErrProtocol)
	}
	if err := full(c, b[8:16]); err != nil {
		return 0, fmt.Errorf("the greeting: %w", err)
	}
	switch m := be.Uint64(b[8:]); m {
	case optMagic:
	case oldMagic:
		return 0, fmt.Errorf("the server speaks oldstyle negotiation, which has no NBD_OPT_GO: %w", syscall.EOPNOTSUPP)
	default:
		return 0, fmt.Errorf("the greeting goes on with %#x, not IHAVEOPT: %w", m, block.ErrProtocol)
	}
	if err := full(c, b[16:]); err != nil {
		return 0, fmt.Errorf("the greeting: %w", err)
	}
	has := be.Uint16(b[16:])
	if has&flagFixedNewstyle == 0 {
		return 0, fmt.Errorf("handshake flags %#x: the server's newstyle negotiation is not fixed, "+
			"and has no NBD_OPT_GO: %w", has, syscall.EOPNOTSUPP)
	}
	return uint32(has & (flagFixedNewstyle | flagNoZeroes)), nil // proto.md, Client flags
}

// full reads len(b) bytes; its error at the end of the stream is io.ErrUnexpectedEOF.
func full(c io.Reader, b []byte) error {
	_, err := io.ReadFull(c, b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func optReply(c io.Reader) (typ uint32, data []byte, err error) {
	var b [20]byte
	if err := full(c, b[:]); err != nil {
		return 0, nil, err
	}
	if m := be.Uint64(b[0:]); m != optRepMagic {
		return 0, nil, fmt.Errorf("it begins with %#x, not %#x: %w", m, uint64(optRepMagic), block.ErrProtocol)
	}
	if o := be.Uint32(b[8:]); o != optGo {
		return 0, nil, fmt.Errorf("it is one to option %d: %w", o, block.ErrProtocol)
	}
	typ = be.Uint32(b[12:])
	n := be.Uint32(b[16:])
	if n > maxReplyLen {
		return 0, nil, fmt.Errorf("it has %d bytes, %d at most: %w", n, maxReplyLen, block.ErrProtocol)
	}
	if typ == repAck && n != 0 {
		return 0, nil, fmt.Errorf("NBD_REP_ACK has %d bytes, and should have none: %w", n, block.ErrProtocol)
	}
	data = make([]byte, n)
	return typ, data, full(c, data)
}

// info stores the information of an NBD_REP_INFO, if it knows the information's type, and returns that type (proto.md,
// Option reply types).
func (e *export) info(b []byte) (typ uint16, err error) {
	if len(b) < 2 {
		return 0, fmt.Errorf("NBD_REP_INFO of %d bytes: 2 at least: %w", len(b), block.ErrProtocol)
	}
	typ = be.Uint16(b)
	wants := func(name string, n int) error {
		if len(b) != n {
			return fmt.Errorf("%s of %d bytes, and not %d: %w", name, len(b), n, block.ErrProtocol)
		}
		return nil
	}
	switch typ {
	case infoExport:
		if err := wants("NBD_INFO_EXPORT", 12); err != nil {
			return typ, err
		}
		e.size, e.flags = be.Uint64(b[2:]), be.Uint16(b[10:])
	case infoBlockSize:
		if err := wants("NBD_INFO_BLOCK_SIZE", 14); err != nil {
			return typ, err
		}
		e.minBlock, e.maxPayload = be.Uint32(b[2:]), be.Uint32(b[10:])
		if bits.OnesCount32(e.minBlock) != 1 || e.minBlock > maxMinBlock || e.maxPayload < e.minBlock {
			return typ, fmt.Errorf("NBD_INFO_BLOCK_SIZE: blocks of %d bytes, payload of up to %d: %w", e.minBlock,
				e.maxPayload, block.ErrProtocol)
		}
	case infoName:
		e.name = shown(b[2:])
	case infoDescription:
		e.description = shown(b[2:])
	}
	return typ, nil // information of other types is ignored
}

func (e *export) check() error {
	if e.flags&flagHasFlags == 0 {
		return fmt.Errorf("handshake: transmission flags %#x, without NBD_FLAG_HAS_FLAGS: %w", e.flags,
			block.ErrProtocol)
	}
	return nil
}

// shown returns at most the first maxShown bytes of a server's text, with '.' for an ASCII control character or a run
// of invalid UTF-8.
func shown(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '.'
		}
		return r
	}, strings.ToValidUTF8(string(b[:min(len(b), maxShown)]), "."))
}

func refused(name string, typ uint32, data []byte) error {
	text, err := refusal(typ)
	if len(data) > 0 {
		text += fmt.Sprintf("; it says %q", shown(data))
	}
	return fmt.Errorf("export %q: %s: %w", name, text, err)
}

func (e *export) device(depth int) block.Info {
	i := block.Info{Size: e.size, BlockSize: defaultBlockSize, MaxTransfer: maxPayload, MaxDepth: depth,
		ReadOnly: e.flags&flagReadOnly != 0}
	if e.minBlock != 0 {
		i.BlockSize = uint64(e.minBlock)
		i.MaxTransfer = uint64(min(e.maxPayload, maxPayload)) / i.BlockSize * i.BlockSize
	} else if e.size%defaultBlockSize != 0 {
		i.BlockSize = 1
	}
	return i
}
