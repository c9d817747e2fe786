package nbd

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"vnic.dev/vnic/block"
)

// Numbers in NBD's messages are big endian (proto.md, Conventions: network byte order).
var be = binary.BigEndian

// The handshake (proto.md, Newstyle negotiation and Fixed newstyle negotiation).
const (
	initMagic   = 0x4e42444d41474943 // NBDMAGIC
	optMagic    = 0x49484156454f5054 // IHAVEOPT
	oldMagic    = 0x00420281861253   // of oldstyle negotiation
	optRepMagic = 0x3e889045565a9

	flagFixedNewstyle = 1 << 0 // NBD_FLAG_FIXED_NEWSTYLE, and NBD_FLAG_C_FIXED_NEWSTYLE
	flagNoZeroes      = 1 << 1 // NBD_FLAG_NO_ZEROES, and NBD_FLAG_C_NO_ZEROES

	optAbort = 2 // NBD_OPT_ABORT
	optGo    = 7 // NBD_OPT_GO

	repAck  = 1       // NBD_REP_ACK
	repInfo = 3       // NBD_REP_INFO
	repErr  = 1 << 31 // a bit of all NBD_REP_ERR_*

	infoExport      = 0 // NBD_INFO_EXPORT
	infoName        = 1 // NBD_INFO_NAME
	infoDescription = 2 // NBD_INFO_DESCRIPTION
	infoBlockSize   = 3 // NBD_INFO_BLOCK_SIZE

	maxString = 4096 // the largest length of a string (proto.md, Conventions)
)

// Transmission flags (proto.md, Transmission flags).
const (
	flagHasFlags  = 1 << 0 // NBD_FLAG_HAS_FLAGS
	flagReadOnly  = 1 << 1 // NBD_FLAG_READ_ONLY
	flagSendFlush = 1 << 2 // NBD_FLAG_SEND_FLUSH
	flagMultiConn = 1 << 8 // NBD_FLAG_CAN_MULTI_CONN
)

// Transmission (proto.md, Request message, Simple reply message, Request types).
const (
	requestMagic    = 0x25609513 // NBD_REQUEST_MAGIC
	simpleMagic     = 0x67446698 // NBD_SIMPLE_REPLY_MAGIC
	structuredMagic = 0x668e33ef // NBD_STRUCTURED_REPLY_MAGIC

	cmdRead  = 0 // NBD_CMD_READ
	cmdWrite = 1 // NBD_CMD_WRITE
	cmdDisc  = 2 // NBD_CMD_DISC
	cmdFlush = 3 // NBD_CMD_FLUSH

	requestLen = 28
	replyLen   = 16
)

// Size constraints (proto.md).
const (
	defaultBlockSize = 512
	maxPayload       = 32 << 20 // of this client; a server may treat longer payload as an attack
	maxMinBlock      = 64 << 10 // the largest minimum block size that a server may announce
)

type request struct {
	Type   uint16 // offset 6
	Cookie uint64 // 8
	Off    uint64 // 16
	Len    uint32 // 24
}

func (r *request) encode(b *[requestLen]byte) {
	be.PutUint32(b[0:], requestMagic)
	be.PutUint16(b[4:], 0)
	be.PutUint16(b[6:], r.Type)
	be.PutUint64(b[8:], r.Cookie)
	be.PutUint64(b[16:], r.Off)
	be.PutUint32(b[24:], r.Len)
}

type reply struct {
	Magic  uint32 // offset 0
	Error  uint32 // 4
	Cookie uint64 // 8
}

func (r *reply) decode(b *[replyLen]byte) {
	r.Magic, r.Error, r.Cookie = be.Uint32(b[0:]), be.Uint32(b[4:]), be.Uint64(b[8:])
}

func (r *reply) check() error {
	switch r.Magic {
	case simpleMagic:
		return nil
	case structuredMagic:
		return fmt.Errorf("a structured reply, which was not negotiated: %w", block.ErrProtocol)
	}
	return fmt.Errorf("a reply begins with %#08x, not %#x: %w", r.Magic, uint32(simpleMagic), block.ErrProtocol)
}

// status returns a text for a reply's error value, and an errno (proto.md, Error values): EIO if NBD does not define
// the value.
func status(value uint32) (string, syscall.Errno) {
	if e, ok := map[uint32]struct {
		name  string
		errno syscall.Errno
	}{
		1:   {"NBD_EPERM", syscall.EPERM},
		5:   {"NBD_EIO", syscall.EIO},
		12:  {"NBD_ENOMEM", syscall.ENOMEM},
		22:  {"NBD_EINVAL", syscall.EINVAL},
		28:  {"NBD_ENOSPC", syscall.ENOSPC},
		75:  {"NBD_EOVERFLOW", syscall.EOVERFLOW},
		95:  {"NBD_ENOTSUP", syscall.ENOTSUP},
		108: {"NBD_ESHUTDOWN", syscall.ESHUTDOWN},
	}[value]; ok {
		return fmt.Sprintf("%s (%d)", e.name, value), e.errno
	}
	return fmt.Sprintf("error %d, which is none of NBD's", value), syscall.EIO
}

// refusal returns a text for an error reply to NBD_OPT_GO, by its type, and an errno or block.ErrProtocol.
func refusal(typ uint32) (string, error) {
	if e, ok := map[uint32]struct {
		text string
		err  error
	}{
		1:  {"NBD_REP_ERR_UNSUP: the server does not know NBD_OPT_GO", syscall.EOPNOTSUPP},
		2:  {"NBD_REP_ERR_POLICY: the server's policy forbids it", syscall.EPERM},
		3:  {"NBD_REP_ERR_INVALID: the server takes the request for invalid", syscall.EINVAL},
		4:  {"NBD_REP_ERR_PLATFORM: the server's platform has no such thing", syscall.EOPNOTSUPP},
		5:  {"NBD_REP_ERR_TLS_REQD: a record of TLS cannot be decrypted in device memory here", syscall.EOPNOTSUPP},
		6:  {"NBD_REP_ERR_UNKNOWN: there is no such export", syscall.ENOENT},
		7:  {"NBD_REP_ERR_SHUTDOWN: the server is being shut down", syscall.ESHUTDOWN},
		8:  {"NBD_REP_ERR_BLOCK_SIZE_REQD, though block sizes were asked for", block.ErrProtocol},
		9:  {"NBD_REP_ERR_TOO_BIG: the request or its reply is too large", syscall.EMSGSIZE},
		10: {"NBD_REP_ERR_EXT_HEADER_REQD: extended headers are not spoken here", syscall.EOPNOTSUPP},
	}[typ&^repErr]; ok {
		return e.text, e.err
	}
	return fmt.Sprintf("an error of type %#x, which is none of NBD's", typ), syscall.EPROTO
}
