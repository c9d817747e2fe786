package newc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrBadArchive means that bytes are not an archive of this format.
var ErrBadArchive = errors.New("no cpio archive of the form newc")

// Reader reads an archive: Next goes to a file, and Read returns its content. One goroutine may use
// a Reader.
type Reader struct {
	r    io.Reader
	left int64 // of the content
	pad  int64 // bytes of padding after the content
	err  error // the error that has ended the Reader
}

// NewReader makes a Reader. It reads no byte from r after the trailer and its padding.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next goes to the next file. After the last one, at the trailer, the error is io.EOF; after any
// error later calls return the same error. A File from Next has no Open.
func (r *Reader) Next() (File, error) {
	if r.err != nil {
		return File{}, r.err
	}
	f, err := r.next()
	if err != nil {
		r.left, r.err = 0, err
		return File{}, err
	}
	return f, nil
}

func (r *Reader) next() (f File, err error) {
	if _, err := io.CopyN(io.Discard, r.r, r.left+r.pad); err != nil {
		return f, short(err)
	}
	r.left, r.pad = 0, 0
	var b [headerLen]byte
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return f, short(err)
	}
	if string(b[:len(magic)]) != magic {
		return f, fmt.Errorf("%w: the magic is %q", ErrBadArchive, b[:len(magic)])
	}
	var size, nameLen, sum uint32
	for i, v := range f.fields(&size, &nameLen, &sum) {
		digits := b[len(magic)+8*i:][:8]
		n, err := strconv.ParseUint(string(digits), 16, 32)
		if err != nil {
			return f, fmt.Errorf("%w: number %d of the header is %q", ErrBadArchive, i, digits)
		}
		*v = uint32(n)
	}
	if nameLen == 0 || nameLen > unix.PathMax {
		return f, fmt.Errorf("%w: a name of %d bytes", ErrBadArchive, nameLen)
	}
	name := make([]byte, int(nameLen)+-(headerLen+int(nameLen))&3) // with its padding
	if _, err := io.ReadFull(r.r, name); err != nil {
		return f, short(err)
	}
	end := bytes.IndexByte(name, 0)
	if end != int(nameLen)-1 {
		return f, fmt.Errorf("%w: a name of %d bytes does not end with its only zero byte", ErrBadArchive, nameLen)
	}
	if f.Name, f.Size = string(name[:end]), int64(size); f.Name == trailer {
		return f, io.EOF
	}
	r.left, r.pad = f.Size, -f.Size&3
	return f, nil
}

// Read reads the content of the current file.
func (r *Reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	if err != nil && r.left > 0 {
		return n, short(err)
	}
	return n, nil
}

// short returns the error of an archive that ends too early.
func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends before its trailer", ErrBadArchive)
	}
	return err
}
