package kernel

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
)

// attrs are netlink attributes to send, in their order.
type attrs []attr

// attr is an attribute to send: a number of its own width, a string, attributes nested in it, or a flag, which is nil.
type attr struct {
	kind  uint16
	value any
}

func (as attrs) encode() ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	for _, a := range as {
		switch v := a.value.(type) {
		case attrs:
			ae.Do(netlink.Nested|a.kind, v.encode)
		case string:
			ae.String(a.kind, v)
		case nil:
			ae.Flag(a.kind, true)
		default:
			ae.Do(a.kind, func() ([]byte, error) { return binary.Append(nil, native, v) })
		}
	}
	return ae.Encode()
}

// fields are the attributes to look for in a message, by type: where a number is to be stored, the fields nested in
// it, or a function that reads it.
type fields map[uint16]any

func (fs fields) decode(ad *netlink.AttributeDecoder) {
	for ad.Next() {
		switch f := fs[ad.Type()].(type) {
		case *uint8:
			*f = ad.Uint8()
		case *uint32:
			*f = ad.Uint32()
		case *uint64:
			*f = number(ad)
		case fields:
			ad.Nested(func(ad *netlink.AttributeDecoder) error { f.decode(ad); return nil })
		case func(*netlink.AttributeDecoder):
			f(ad)
		}
	}
}

// number decodes attributes of type "uint", which have 4 or 8 bytes.
func number(ad *netlink.AttributeDecoder) uint64 {
	if len(ad.Bytes()) == 8 {
		return ad.Uint64()
	}
	return uint64(ad.Uint32())
}
