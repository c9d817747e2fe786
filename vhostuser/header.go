package vhostuser

import (
	"encoding/binary"
	"fmt"
)

// "All numbers are in the machine native byte order" (vhost-user.rst, "Message Specification").
var le = binary.LittleEndian

// Flags are the flags of a message header (vhost-user.rst, "Header").
type Flags uint32

// The flags.
const (
	Version       Flags = 1      // value of the version bits: VHOST_USER_VERSION
	FlagVersion   Flags = 3      // mask of the version: VHOST_USER_VERSION_MASK
	FlagReply     Flags = 1 << 2 // VHOST_USER_REPLY_MASK
	FlagNeedReply Flags = 1 << 3 // VHOST_USER_NEED_REPLY_MASK, "REPLY_ACK"
)

// String returns the version and the names of the flags, joined by |; other bits follow as one number.
func (f Flags) String() string {
	s := fmt.Sprintf("v%d", uint32(f&FlagVersion))
	if f&FlagReply != 0 {
		s += "|reply"
	}
	if f&FlagNeedReply != 0 {
		s += "|need_reply"
	}
	if f &^= FlagVersion | FlagReply | FlagNeedReply; f != 0 {
		s += fmt.Sprintf("|%#x", uint32(f))
	}
	return s
}

const headerLen = 12

// Header precedes every message (vhost-user.rst, "Message Specification").
type Header struct {
	Request Request // offset 0
	Flags   Flags   // 4
	Size    uint32  // 8: bytes of payload that follow
}
