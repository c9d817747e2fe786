package control

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Values on the wire consist of fixed-size structs, laid out by encoding/binary: their fields in order, little
// endian, without gaps; a field named _ is reserved and zero. A Go type without a fixed size implements
// appender and decoder.
type (
	appender interface {
		append(b []byte) ([]byte, error)
	}
	decoder interface {
		decode(data []byte) (n int, err error)
	}
)

type none struct{}

func encode(b []byte, v any) ([]byte, error) {
	if a, ok := v.(appender); ok {
		return a.append(b)
	}
	return binary.Append(b, le, v)
}

// decode sets v, a pointer, from data, which must have no other bytes.
func decode(data []byte, v any) error {
	n, err := decodeFirst(data, v)
	if err == nil && n != len(data) {
		err = badData("%d bytes of data, not %d", len(data), n)
	}
	return err
}

// decodeFirst sets v, a pointer, from the start of data and returns how many bytes it used. Each value has
// one encoding: decodeFirst refuses data that encode would not have written.
func decodeFirst(data []byte, v any) (n int, err error) {
	if d, ok := v.(decoder); ok {
		n, err = d.decode(data)
	} else {
		n, err = decodeFixed(data, v)
	}
	if err != nil {
		return 0, err
	}
	again, err := encode(make([]byte, 0, n), v)
	if err != nil {
		return 0, err
	}
	if !bytes.Equal(again, data[:n]) {
		i := 0
		for i < min(n, len(again))-1 && again[i] == data[i] {
			i++
		}
		return 0, badData("%s: byte %d is %#02x: what is reserved or not flagged is zero, a bool 0 or 1",
			strings.TrimPrefix(fmt.Sprintf("%T", v), "*control."), i, data[i])
	}
	return n, nil
}

// decodeFixed sets v, a pointer to a fixed-size value or a slice of them, and does not check reserved bytes.
func decodeFixed(data []byte, v any) (int, error) {
	n, err := binary.Decode(data, le, v)
	if err != nil {
		err = badData("%d bytes of data, not %d", len(data), binary.Size(v))
	}
	return n, err
}

// appendElems appends a value's fixed part and its elements. tooMany is the format of the error for more than
// limit elements.
func appendElems[T any](b []byte, head any, elems []T, limit int, tooMany string) ([]byte, error) {
	if len(elems) > limit {
		return nil, badData(tooMany, len(elems), limit)
	}
	b, err := encode(b, head)
	if err == nil {
		b, err = encode(b, elems)
	}
	return b, err
}

// decodeElems sets the fixed part of a value, head, and returns the elements after it. Their number, at most limit, is
// in the field of head to which count points. size is the number of bytes used.
func decodeElems[T any, N uint16 | uint32](data []byte, head any, count *N, limit int) (elems []T, size int,
	err error) {
	n, err := decodeFixed(data, head)
	switch {
	case err != nil:
		return nil, 0, err
	case uint64(*count) > uint64(limit):
		return nil, 0, badData("%d elements, at most %d", *count, limit)
	case *count == 0:
		return nil, n, nil
	}
	elems = make([]T, *count)
	size, err = decodeFixed(data[n:], elems)
	return elems, n + size, err
}

type element interface {
	// number is the element's position in the list's order; not 0
	number() uint32
}

// list is the reply to a request for a list: {count u16, more u16, zero u32} and the elements. The request is
// a number; the reply has elements with greater numbers, so a list may change between its frames.
type list[T element] struct {
	elems []T
	more  bool // there are elements after these
}

type listHead struct {
	Count uint16
	More  uint16
	_     uint32
}

// after returns the elements whose number is greater than n.
func after[T element](elems []T, n uint32) list[T] {
	if n != 0 {
		elems = slices.DeleteFunc(slices.Clone(elems), func(e T) bool { return e.number() <= n })
	}
	return list[T]{elems: elems}
}

// append appends as many elements as fit in a frame.
func (l list[T]) append(b []byte) ([]byte, error) {
	var head listHead
	size := binary.Size(head)
	elems := make([]byte, 0, MaxData)
	for _, e := range l.elems {
		longer, err := encode(elems, e)
		if err != nil {
			return nil, err
		}
		if size+len(longer) > MaxData {
			l.more = true
			break
		}
		elems = longer
		head.Count++
	}
	if l.more {
		head.More = 1
	}
	b, err := encode(b, head)
	return append(b, elems...), err
}

// decode allocates only for elements whose bytes are there, whatever the count.
func (l *list[T]) decode(data []byte) (int, error) {
	var head listHead
	n, err := decodeFirst(data, &head)
	if err != nil {
		return 0, err
	}
	if head.More > 1 || head.More == 1 && head.Count == 0 {
		return 0, badData("list: %d elements, more %d", head.Count, head.More)
	}
	*l = list[T]{more: head.More == 1}
	for range head.Count {
		var e T
		m, err := decodeFirst(data[n:], &e)
		if err != nil {
			return 0, fmt.Errorf("list: element %d of %d: %w", len(l.elems), head.Count, err)
		}
		n += m
		l.elems = append(l.elems, e)
	}
	return n, nil
}
