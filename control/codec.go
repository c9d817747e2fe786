package control

// array is the fixed arrays that commands are encoded over, so that a type proves its length.
type array interface {
	[4]byte | [splitLen]byte | [bufferLen]byte | [infoLen]byte | [ruleLen]byte | [statusLen]byte | [gpuLen]byte |
		[countersLen]byte | [portLen]byte | [gpuMapLen]byte
}

// get decodes data, which must have just the length of decode's array.
func get[A array](data []byte, decode func(*A) error) error {
	var a A
	if len(data) != len(a) {
		return badData("%d bytes of data, not %d", len(data), len(a))
	}
	for i := range len(a) {
		a[i] = data[i]
	}
	return decode(&a)
}

// put appends what encode makes.
func put[A array](b []byte, encode func(*A)) []byte {
	var a A
	encode(&a)
	for i := range len(a) {
		b = append(b, a[i])
	}
	return b
}

// tryPut is put for what may not be possible to encode.
func tryPut[A array](b []byte, encode func(*A) error) ([]byte, error) {
	var a A
	if err := encode(&a); err != nil {
		return nil, err
	}
	return put(b, func(out *A) { *out = a }), nil
}

// number is an id of 32 bits.
type number uint32

func (n *number) encode(b *[4]byte)       { le.PutUint32(b[:], uint32(*n)) }
func (n *number) decode(b *[4]byte) error { *n = number(le.Uint32(b[:])); return nil }

// number64 is an id of 64 bits.
type number64 uint64

func (n *number64) encode(b *[8]byte)       { le.PutUint64(b[:], uint64(*n)) }
func (n *number64) decode(b *[8]byte) error { *n = number64(le.Uint64(b[:])); return nil }

// A list's reply is {count u16, more u16, zero u32} and its elements. The request names the id after which to begin,
// so that a list that needs several frames can change in between and every element that stays is still seen.
const listLen = 8

// putList appends the elements whose id is greater than after, as many as fit in a frame.
func putList[T any](b []byte, elems []T, after uint32, id func(*T) uint32, size int, encode func([]byte, *T) ([]byte, error)) ([]byte, error) {
	start := len(b)
	b = append(b, make([]byte, listLen)...)
	count := 0
	for i := range elems {
		if after != 0 && id(&elems[i]) <= after {
			continue
		}
		if len(b)-start+size > MaxData {
			le.PutUint16(b[start+2:], 1)
			break
		}
		var err error
		if b, err = encode(b, &elems[i]); err != nil {
			return nil, err
		}
		count++
	}
	le.PutUint16(b[start:], uint16(count))
	return b, nil
}

// getList appends the elements of one reply to elems.
func getList[T any](data []byte, elems []T, size int, decode func([]byte, *T) error) (all []T, more bool, err error) {
	if len(data) < listLen || le.Uint16(data[2:]) > 1 || !zero(data[4:8]) {
		return nil, false, badData("list: head of %d bytes, or reserved bytes not zero", len(data))
	}
	n, more := int(le.Uint16(data)), le.Uint16(data[2:]) == 1
	if data = data[listLen:]; len(data) != n*size || (more && n == 0) {
		return nil, false, badData("list: %d elements of %d bytes in %d bytes", n, size, len(data))
	}
	for i := range n {
		var e T
		if err := decode(data[i*size:(i+1)*size], &e); err != nil {
			return nil, false, err
		}
		elems = append(elems, e)
	}
	return elems, more, nil
}
