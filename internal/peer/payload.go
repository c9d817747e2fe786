package peer

import "encoding/binary"

// Decode decodes a T from the beginning of b: a struct of fixed size whose fields are exported or blank, little-endian,
// without padding. It panics if b is shorter, or if T has no fixed size.
func Decode[T any](b []byte) (v T) {
	if _, err := binary.Decode(b, binary.LittleEndian, &v); err != nil {
		panic(err)
	}
	return v
}

// Append appends a value that Decode can decode, or a slice of such values. It panics for a type without a fixed size.
func Append[T any](b []byte, v T) []byte {
	b, err := binary.Append(b, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
	return b
}
