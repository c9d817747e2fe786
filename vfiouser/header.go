package vfiouser

import (
	"encoding/binary"
	"fmt"
)

// le is the byte order of hosts that this package supports: "all data is in the endianness of the host system"
// (vfio-user.rst, "Protocol Specification").
var le = binary.LittleEndian

// Command is the kind of a message (vfio-user.rst, "Commands").
type Command uint16

// The commands; for 14 see QEMU's hw/vfio-user/protocol.h.
const (
	CmdVersion          Command = 1  // VFIO_USER_VERSION
	CmdDMAMap           Command = 2  // VFIO_USER_DMA_MAP
	CmdDMAUnmap         Command = 3  // VFIO_USER_DMA_UNMAP
	CmdGetInfo          Command = 4  // VFIO_USER_DEVICE_GET_INFO
	CmdGetRegionInfo    Command = 5  // VFIO_USER_DEVICE_GET_REGION_INFO
	CmdGetRegionIOFDs   Command = 6  // VFIO_USER_DEVICE_GET_REGION_IO_FDS
	CmdGetIRQInfo       Command = 7  // VFIO_USER_DEVICE_GET_IRQ_INFO
	CmdSetIRQs          Command = 8  // VFIO_USER_DEVICE_SET_IRQS
	CmdRegionRead       Command = 9  // VFIO_USER_REGION_READ
	CmdRegionWrite      Command = 10 // VFIO_USER_REGION_WRITE
	CmdDMARead          Command = 11 // VFIO_USER_DMA_READ, server to client
	CmdDMAWrite         Command = 12 // VFIO_USER_DMA_WRITE, server to client
	CmdReset            Command = 13 // VFIO_USER_DEVICE_RESET
	CmdDirtyPages       Command = 14 // VFIO_USER_DIRTY_PAGES
	CmdRegionWriteMulti Command = 15 // VFIO_USER_REGION_WRITE_MULTI
	CmdFeature          Command = 16 // VFIO_USER_DEVICE_FEATURE
	CmdMigDataRead      Command = 17 // VFIO_USER_MIG_DATA_READ
	CmdMigDataWrite     Command = 18 // VFIO_USER_MIG_DATA_WRITE
)

// String returns the command's name without VFIO_USER_, or "command N" for an unknown command.
func (c Command) String() string {
	if int(c) < len(rules) && rules[c].name != "" {
		return rules[c].name
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// Flags are the flags of a header (vfio-user.rst, "Header").
type Flags uint32

// The flags.
const (
	FlagType    Flags = 0xf // mask of the type; 0 is a command
	FlagReply   Flags = 0x1
	FlagNoReply Flags = 1 << 4 // a command that is not answered
	FlagError   Flags = 1 << 5 // a reply with an errno
)

// HeaderLen is the length of a Header in bytes.
const HeaderLen = 16

// Header precedes every message (vfio-user.rst, "Header").
type Header struct {
	ID      uint16  // offset 0: a reply has the ID of its command
	Command Command // 2
	Size    uint32  // 4: of the whole message, this header included
	Flags   Flags   // 8
	Errno   uint32  // 12: in a reply with FlagError
}

func (h *Header) decode(b *[HeaderLen]byte) {
	h.ID = le.Uint16(b[0:])
	h.Command = Command(le.Uint16(b[2:]))
	h.Size = le.Uint32(b[4:])
	h.Flags = Flags(le.Uint32(b[8:]))
	h.Errno = le.Uint32(b[12:])
}

func (h *Header) encode(b *[HeaderLen]byte) {
	le.PutUint16(b[0:], h.ID)
	le.PutUint16(b[2:], uint16(h.Command))
	le.PutUint32(b[4:], h.Size)
	le.PutUint32(b[8:], uint32(h.Flags))
	le.PutUint32(b[12:], h.Errno)
}

func (h *Header) check() error {
	switch {
	case h.Size < HeaderLen:
		return fmt.Errorf("%v: message of %d bytes: not a vfio-user client?: %w", h.Command, h.Size, ErrBadMessage)
	case h.Size-HeaderLen > maxPayload:
		return fmt.Errorf("%v: message of %d bytes, more than %d: %w", h.Command, h.Size, HeaderLen+maxPayload, ErrBadMessage)
	case h.Flags&FlagType != 0:
		return fmt.Errorf("%v: flags %#x where a command is due: %w", h.Command, uint32(h.Flags), ErrBadMessage)
	}
	return nil
}
