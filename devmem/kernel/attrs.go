package kernel

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
)

// attrs are netlink attributes, in the order in which encode writes them.
type attrs []attr

// attr is an attribute: its type, and a value, which is a number, whose Go type has the encoded width, a string, nested
// attrs, or nil for a flag.
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

// fields maps an attribute's type to where decode writes the value: a pointer to a uint8, uint32, uint64 or string,
// nested fields, a start, or a function that decode calls. decode skips other attributes.
type fields map[uint16]any

// start has a pointer to a number. decode writes to it the number with which the attribute's value, a struct, begins.
type start struct{ number any }

func (fs fields) decode(ad *netlink.AttributeDecoder) {
	for ad.Next() {
		switch f := fs[ad.Type()].(type) {
		case *uint8:
			*f = ad.Uint8()
		case *uint32:
			*f = ad.Uint32()
		case *uint64:
			*f = number(ad)
		case *string:
			*f = ad.String()
		case start:
			_, _ = binary.Decode(ad.Bytes(), native, f.number) // nothing is stored if the struct is too short
		case fields:
			ad.Nested(func(ad *netlink.AttributeDecoder) error { f.decode(ad); return nil })
		case func(*netlink.AttributeDecoder):
			f(ad)
		}
	}
}

// number decodes netlink's type "uint", which has 4 or 8 bytes. For another length it sets ad's error.
func number(ad *netlink.AttributeDecoder) uint64 {
	if len(ad.Bytes()) == 8 {
		return ad.Uint64()
	}
	return uint64(ad.Uint32())
}
