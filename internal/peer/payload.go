package peer

import "encoding/binary"

// Decode decodes a T from the beginning of b: a struct of fixed size whose fields are exported,
// little-endian, without padding. That b is as long as a T was checked before: it panics if not.
func Decode[T any](b []byte) (v T) {
	if _, err := binary.Decode(b, binary.LittleEndian, &v); err != nil {
		panic(err)
	}
	return v
}

// Append appends what Decode decodes, or a slice of such.
func Append[T any](b []byte, v T) []byte {
	b, err := binary.Append(b, binary.LittleEndian, v)
	if err != nil {
		panic(err) // a T that has no fixed size
	}
	return b
}
