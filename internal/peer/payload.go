package peer

import "encoding/binary"

// Decode decodes a T from the beginning of b: a struct of fixed size whose fields are exported, little-endian,
// without padding. It panics if b is shorter.
func Decode[T any](b []byte) (v T) {
	if _, err := binary.Decode(b, binary.LittleEndian, &v); err != nil {
		panic(err)
	}
	return v
}

// Append appends a value that Decode can decode, or a slice of such values.
func Append[T any](b []byte, v T) []byte {
	b, err := binary.Append(b, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
	return b
}
