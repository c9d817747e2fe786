package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
)

var le = binary.LittleEndian

// ErrMalformed is the error for a frame, or a command's data, that cannot be decoded or encoded. Another version of
// the protocol is EPROTONOSUPPORT.
var ErrMalformed = errors.New("malformed control frame")

// Frame is a control frame.
type Frame struct {
	Dst, Src [6]byte
	Header
	Data []byte
}

func (h *Header) encode(b *[HeaderLen]byte) {
	b[0], b[1], b[2], b[3] = h.Version, byte(h.Kind), byte(h.Class), byte(h.Command)
	le.PutUint32(b[4:], h.Session)
	le.PutUint32(b[8:], h.Seq)
	le.PutUint32(b[12:], h.Generation)
	le.PutUint16(b[16:], uint16(h.Errno))
	le.PutUint16(b[18:], h.Len)
}

func (h *Header) decode(b *[HeaderLen]byte) {
	h.Version, h.Kind, h.Class, h.Command = b[0], Kind(b[1]), Class(b[2]), Command(b[3])
	h.Session = le.Uint32(b[4:])
	h.Seq = le.Uint32(b[8:])
	h.Generation = le.Uint32(b[12:])
	h.Errno = syscall.Errno(le.Uint16(b[16:]))
	h.Len = le.Uint16(b[18:])
}

// Append sets the frame's Version and Len, and appends its bytes to b. It cuts data that is longer than MaxData.
func (f *Frame) Append(b []byte) []byte {
	data := f.Data[:min(len(f.Data), MaxData)]
	f.Version, f.Len = Version, uint16(len(data))
	var head [EthernetLen + HeaderLen]byte
	copy(head[0:], f.Dst[:])
	copy(head[6:], f.Src[:])
	binary.BigEndian.PutUint16(head[12:], EtherType) // network order
	f.encode((*[HeaderLen]byte)(head[EthernetLen:]))
	return append(append(b, head[:]...), data...)
}

// Parse decodes a frame. Data points into b, without padding. After an error about b's length or the
// EtherType, all fields are zero; after other errors, Data is nil and the other fields are set.
func (f *Frame) Parse(b []byte) error {
	*f = Frame{}
	if len(b) < EthernetLen+HeaderLen || len(b) > MaxFrame {
		return fmt.Errorf("%w: %d bytes, not %d to %d", ErrMalformed, len(b), EthernetLen+HeaderLen, MaxFrame)
	}
	if t := binary.BigEndian.Uint16(b[12:]); t != EtherType {
		return fmt.Errorf("%w: EtherType %#04x", ErrMalformed, t)
	}
	f.Dst, f.Src = [6]byte(b[0:]), [6]byte(b[6:])
	f.decode((*[HeaderLen]byte)(b[EthernetLen:]))
	data := b[EthernetLen+HeaderLen:]
	switch {
	case f.Version != Version:
		return fmt.Errorf("protocol version %d, this end has %d: %w", f.Version, Version, syscall.EPROTONOSUPPORT)
	case f.Kind < KindRequest || f.Kind > KindNotify:
		return fmt.Errorf("%w: kind %d: %w", ErrMalformed, f.Kind, syscall.EINVAL)
	case int(f.Len) > len(data):
		return fmt.Errorf("%w: %d bytes of data promised, %d there: %w", ErrMalformed, f.Len, len(data), syscall.EINVAL)
	}
	f.Data = data[:f.Len]
	return nil
}

// IsControl reports whether a frame belongs to the control channel: by its EtherType, or with MAC as its destination or
// source.
func IsControl(frame []byte) bool {
	return len(frame) >= EthernetLen && (binary.BigEndian.Uint16(frame[12:]) == EtherType ||
		[6]byte(frame[0:]) == MAC || [6]byte(frame[6:]) == MAC)
}

func badData(what string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrMalformed, fmt.Sprintf(what, args...), syscall.EINVAL)
}
