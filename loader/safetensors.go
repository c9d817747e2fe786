package loader

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"

	"vnic.dev/vnic/devmem"
)

// MaxHeader is how long the header of a safetensors file may be. The format's own readers take 100
// MB; 16 MiB describe some hundred thousand tensors.
const MaxHeader = 16 << 20

// ErrFormat is a file that is no safetensors file, or a broken one.
var ErrFormat = errors.New("no safetensors file")

// dtypes are the types of elements, by bits: those of the format's reference implementation
// (huggingface/safetensors, safetensors/src/tensor.rs, Dtype).
var dtypes = map[string]uint64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// Tensor is one of a file.
type Tensor struct {
	Name  string
	DType string // the format's word, as "BF16"
	Shape []uint64
	Begin uint64 // in the data, which follows the header
	Len   uint64 // in bytes
}

// Safetensors is a file of tensors (https://github.com/huggingface/safetensors, "Format"): 8 bytes
// that say how long the header is, little endian; the header, JSON; the tensors, one behind the
// other.
type Safetensors struct {
	Tensors  []Tensor // as their data lies
	Metadata map[string]string
	Data     uint64 // where the data begins in the file, in bytes
	Size     uint64 // how long it is

	o *Object
}

// Safetensors reads the header of a file, over an ordinary connection (ReadHost). Errors:
// ErrFormat, those of ReadHost.
func (o *Object) Safetensors(ctx context.Context) (*Safetensors, error) {
	var length [8]byte
	if o.Size() < uint64(len(length)) {
		return nil, fmt.Errorf("%s: %w: %d bytes", o.name, ErrFormat, o.Size())
	}
	if err := o.ReadHost(ctx, length[:], 0); err != nil {
		return nil, err
	}
	n, rest := binary.LittleEndian.Uint64(length[:]), o.Size()-uint64(len(length))
	switch {
	case n > rest:
		return nil, fmt.Errorf("%s: %w: a header of %d bytes, and %d follow", o.name, ErrFormat, n, rest)
	case n > MaxHeader:
		return nil, fmt.Errorf("%s: %w: a header of %d bytes, %d at most", o.name, ErrFormat, n, MaxHeader)
	}
	header := make([]byte, n)
	if err := o.ReadHost(ctx, header, uint64(len(length))); err != nil {
		return nil, err
	}
	s, err := ParseSafetensors(header, rest-n)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.name, err)
	}
	s.Data, s.o = uint64(len(length))+n, o
	return s, nil
}

// Load brings the data of all tensors to a buffer, as it lies in the file: tensor t to off +
// t.Begin. Errors: those of Fetch.
func (s *Safetensors) Load(ctx context.Context, dst devmem.Buffer, off uint64) error {
	if s.Size == 0 {
		return nil
	}
	return s.o.Fetch(ctx, dst, Pieces(Piece{Off: s.Data, Len: s.Size, Mem: off}), func(Piece) error { return nil })
}

// ParseSafetensors parses a header, without its length, that size bytes of data follow. It checks
// what the format's reference does: names are there once, elements and shape make the length, and
// the tensors fill the data without holes and in no place twice. Errors: ErrFormat.
func ParseSafetensors(header []byte, size uint64) (*Safetensors, error) {
	s := &Safetensors{Size: size}
	if err := s.parse(header); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	slices.SortFunc(s.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.Len, b.Len), cmp.Compare(a.Name, b.Name))
	})
	at := uint64(0)
	for _, t := range s.Tensors {
		if t.Begin != at {
			return nil, fmt.Errorf("%w: tensor %q begins at %d, and the one before ends at %d", ErrFormat, short(t.Name),
				t.Begin, at)
		}
		if t.Len > size-at {
			return nil, fmt.Errorf("%w: tensor %q has bytes [%d, +%d), of %d", ErrFormat, short(t.Name),
				t.Begin, t.Len, size)
		}
		at += t.Len
	}
	if at != size {
		return nil, fmt.Errorf("%w: the tensors have %d bytes, and there are %d", ErrFormat, at, size)
	}
	return s, nil
}

func (s *Safetensors) parse(header []byte) error {
	if len(header) == 0 || header[0] != '{' {
		return errors.New("the header does not begin with {")
	}
	if !utf8.Valid(header) {
		return errors.New("the header is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(header))
	d.UseNumber()
	err := object(d, func(name string) error {
		if name == "__metadata__" {
			return s.parseMetadata(d)
		}
		t := Tensor{Name: name}
		if err := t.parse(d); err != nil {
			return fmt.Errorf("tensor %q: %w", short(name), err)
		}
		s.Tensors = append(s.Tensors, t)
		return nil
	})
	if err != nil {
		return fmt.Errorf("header, at byte %d: %w", d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the header goes on behind its }")
	}
	return nil
}

func (s *Safetensors) parseMetadata(d *json.Decoder) error {
	s.Metadata = make(map[string]string)
	return object(d, func(key string) (err error) {
		s.Metadata[key], err = text(d)
		return err
	})
}

// parse parses {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}.
func (t *Tensor) parse(d *json.Decoder) error {
	var offsets []uint64
	known := 0
	err := object(d, func(key string) (err error) {
		known++
		switch key {
		case "dtype":
			t.DType, err = text(d)
		case "shape":
			t.Shape, err = integers(d)
		case "data_offsets":
			offsets, err = integers(d)
		default: // as the reference does
			known--
			var any json.RawMessage
			err = d.Decode(&any)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case known != 3:
		return errors.New("it has not each of dtype, shape and data_offsets")
	case len(offsets) != 2 || offsets[0] > offsets[1]:
		return fmt.Errorf("data_offsets %s: not where it begins and ends", short(offsets))
	}
	size, ok := dtypes[t.DType]
	if !ok {
		return fmt.Errorf("dtype %q: unknown", short(t.DType))
	}
	all := uint64(1)
	for _, n := range append(t.Shape[:len(t.Shape):len(t.Shape)], size) {
		over, product := bits.Mul64(all, n)
		if over != 0 {
			return fmt.Errorf("shape %s of %s: more than there is of any memory", short(t.Shape), t.DType)
		}
		all = product
	}
	t.Begin, t.Len = offsets[0], offsets[1]-offsets[0]
	if all%8 != 0 || t.Len != all/8 {
		return fmt.Errorf("shape %s of %s has %d bits, and data_offsets %d have %d bytes", short(t.Shape), t.DType, all,
			offsets, t.Len)
	}
	return nil
}

// object calls f for each key of an object, none of which may be there twice; f takes its value.
func object(d *json.Decoder, f func(key string) error) error {
	if err := delim(d, '{'); err != nil {
		return err
	}
	seen := make(map[string]struct{})
	for d.More() {
		key, err := text(d)
		if err != nil {
			return err
		}
		if _, twice := seen[key]; twice {
			return fmt.Errorf("%q is there twice", short(key))
		}
		seen[key] = struct{}{}
		if err := f(key); err != nil {
			return err
		}
	}
	return delim(d, '}')
}

// token gives the next token; the end is unexpected.
func token(d *json.Decoder) (json.Token, error) {
	t, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return t, err
}

func delim(d *json.Decoder, want json.Delim) error {
	t, err := token(d)
	if err == nil && t != want {
		err = fmt.Errorf("%s where %v should be", short(t), want)
	}
	return err
}

func text(d *json.Decoder) (string, error) {
	t, err := token(d)
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("%s where a string should be", short(t))
	}
	return s, nil
}

// integers takes an array of numbers that are not negative.
func integers(d *json.Decoder) (list []uint64, err error) {
	if err := delim(d, '['); err != nil {
		return nil, err
	}
	for d.More() {
		t, err := token(d)
		if err != nil {
			return nil, err
		}
		n, ok := t.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%s where a number should be", short(t))
		}
		v, err := strconv.ParseUint(n.String(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: no whole number from 0 to 2^64-1", short(n))
		}
		list = append(list, v)
	}
	return list, delim(d, ']')
}

// short is what an error shows of what a file says, which may be long.
func short(v any) string {
	s := []rune(fmt.Sprint(v))
	if len(s) > 80 {
		s = append(s[:80:80], []rune("...")...)
	}
	return string(s)
}
