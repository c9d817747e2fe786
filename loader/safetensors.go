package loader

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"vnic.dev/vnic/devmem"
)

// MaxHeader is the most bytes that the header of a safetensors file may have (huggingface/safetensors,
// safetensors/src/tensor.rs, MAX_HEADER_SIZE).
const MaxHeader = 100_000_000

// minEntry is the length of the shortest entry of a tensor in a header, with the comma behind it.
const minEntry = len(`"":{"dtype":"U8","shape":[],"data_offsets":[0,0]},`)

// ErrFormat means that a file is not a valid safetensors file.
var ErrFormat = errors.New("no safetensors file")

// dtypes maps the types of elements to their bits (huggingface/safetensors, safetensors/src/tensor.rs,
// Dtype).
var dtypes = map[string]uint64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	DType string // in the format's notation, for example "BF16"
	Shape []uint64
	Begin uint64 // offset in the data, which follows the header, in bytes
	Len   uint64 // in bytes
}

// Safetensors is a file of tensors (https://github.com/huggingface/safetensors, "Format"): 8 bytes with the
// length of the header, little endian; the header, in JSON; the tensors, one after the other.
type Safetensors struct {
	Tensors  []Tensor // in the order of their data
	Metadata map[string]string
	Data     uint64 // offset of the tensors' data in the file, in bytes; 0 in a result of ParseSafetensors
	Size     uint64 // of the data, in bytes

	o *Object
}

// Safetensors reads the header of a file by ReadHost. Errors: ErrFormat, and ReadHost's.
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
		return nil, fmt.Errorf("%s: %w: a header of %d bytes, %d at most: split the file", o.name, ErrFormat, n, MaxHeader)
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

// Load brings the data of all tensors to a buffer: tensor t to off + t.Begin. It needs a Safetensors from
// [Object.Safetensors]: EINVAL for one from [ParseSafetensors] with data. Other errors: Fetch's.
func (s *Safetensors) Load(ctx context.Context, dst devmem.Buffer, off uint64) error {
	switch {
	case s.Size == 0:
		return nil
	case s.o == nil:
		return fmt.Errorf("tensors of a header without an object: %w", syscall.EINVAL)
	}
	return s.o.Fetch(ctx, dst, Pieces(Piece{Off: s.Data, Len: s.Size, Mem: off}), func(Piece) error { return nil })
}

// ParseSafetensors parses a header, without the 8 bytes of its length. size is the length of the data in bytes. No
// name may occur twice, each element type must be known and give the tensor's length together with the shape, and
// the tensors must cover the data without gaps and without overlap. Errors: ErrFormat.
func ParseSafetensors(header []byte, size uint64) (*Safetensors, error) {
	s := &Safetensors{Size: size}
	if err := s.parse(header); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	slices.SortFunc(s.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.Len, b.Len), cmp.Compare(a.Name, b.Name))
	})
	end := uint64(0)
	for _, t := range s.Tensors {
		if t.Begin != end {
			return nil, fmt.Errorf("%w: tensor %q begins at %d, and the one before ends at %d", ErrFormat, short(t.Name),
				t.Begin, end)
		}
		if t.Len > size-end {
			return nil, fmt.Errorf("%w: tensor %q has bytes [%d, +%d), of %d", ErrFormat, short(t.Name),
				t.Begin, t.Len, size)
		}
		end += t.Len
	}
	if end != size {
		return nil, fmt.Errorf("%w: the tensors have %d bytes, and there are %d", ErrFormat, end, size)
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
	l := lexer{b: header}
	// Allocate once: while a slice grows, the old and the new one exist.
	n := min(bytes.Count(header, []byte(`"dtype"`)), len(header)/minEntry)
	s.Tensors = slices.Grow(s.Tensors, n)
	seen := make(map[string]struct{}, n)
	err := l.object(func(name string) error {
		if _, twice := seen[name]; twice {
			return fmt.Errorf("%q is there twice", short(name))
		}
		seen[name] = struct{}{}
		if name == "__metadata__" {
			return s.parseMetadata(&l)
		}
		t := Tensor{Name: name}
		if err := t.parse(&l); err != nil {
			return fmt.Errorf("tensor %q: %w", short(name), err)
		}
		s.Tensors = append(s.Tensors, t)
		return nil
	})
	if err != nil {
		return fmt.Errorf("header, at byte %d: %w", l.pos, err)
	}
	if l.peek(); l.pos < len(header) {
		return errors.New("the header goes on behind its }")
	}
	return nil
}

// parseMetadata parses {"key": "text", ...}, or null.
func (s *Safetensors) parseMetadata(l *lexer) error {
	if l.peek() == 'n' {
		return l.skip()
	}
	n, err := l.count()
	if err != nil {
		return err
	}
	s.Metadata = make(map[string]string, n)
	return l.object(func(key string) (err error) {
		if _, twice := s.Metadata[key]; twice {
			return fmt.Errorf("%q is there twice", short(key))
		}
		s.Metadata[key], err = l.text()
		return err
	})
}

// parse parses {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}.
func (t *Tensor) parse(l *lexer) error {
	var offsets []uint64
	var dtype, shape, place int // how often each key occurs
	err := l.object(func(key string) (err error) {
		switch key {
		case "dtype":
			dtype++
			t.DType, err = l.text()
		case "shape":
			shape++
			t.Shape, err = l.integers()
		case "data_offsets":
			place++
			offsets, err = l.integers()
		default: // the reference skips other keys too
			err = l.skip()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case dtype != 1 || shape != 1 || place != 1:
		return errors.New("it has not each of dtype, shape and data_offsets once")
	case len(offsets) != 2 || offsets[0] > offsets[1]:
		return fmt.Errorf("data_offsets %s: not where it begins and ends", shortList(offsets))
	}
	size, ok := dtypes[t.DType]
	if !ok {
		return fmt.Errorf("dtype %q: unknown", short(t.DType))
	}
	over, all := uint64(0), size
	for _, n := range t.Shape {
		if over, all = bits.Mul64(all, n); over != 0 {
			return fmt.Errorf("shape %s of %s: more than there is of any memory", shortList(t.Shape), t.DType)
		}
	}
	t.Begin, t.Len = offsets[0], offsets[1]-offsets[0]
	if all%8 != 0 || t.Len != all/8 {
		return fmt.Errorf("shape %s of %s has %d bits, and data_offsets %s have %d bytes", shortList(t.Shape), t.DType, all,
			shortList(offsets), t.Len)
	}
	return nil
}

// maxShort is the most runes, or numbers, that an error shows.
const maxShort = 80

// short returns v, or its first maxShort runes and "...", for an error message.
func short[T string | []byte](v T) string {
	s := []rune(string(v[:min(len(v), maxShort*utf8.UTFMax)]))
	if len(s) > maxShort {
		s = append(s[:maxShort:maxShort], []rune("...")...)
	}
	return string(s)
}

func shortList(list []uint64) string {
	return short(strings.ReplaceAll(fmt.Sprint(list[:min(len(list), maxShort)]), " ", ", "))
}
