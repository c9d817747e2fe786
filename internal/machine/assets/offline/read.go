package offline

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// Read reads an archive to its end. It calls begin with the manifest, and then put for each file in order;
// put must read the whole file. An error of begin or put ends the reading, and Read returns it. The caller must not
// use the files unless Read returns no error: Read checks a file's hash after put.
func Read(ctx context.Context, r io.Reader, begin func(*Manifest) error, put func(File, io.Reader) error) error {
	t := tar.NewReader(reader{ctx, r})
	size, err := next(t, manifestName, MaxManifest)
	if err != nil {
		if errors.Is(err, ErrDamaged) || errors.Is(err, ErrFormat) {
			err = fmt.Errorf("%w: it does not begin with a manifest", ErrFormat)
		}
		return err
	}
	var b bytes.Buffer // grows with the data that is there, not to the size that the header claims
	if _, err := io.CopyN(&b, t, size); err != nil {
		return damaged(manifestName, err)
	}
	m := &Manifest{}
	if err := json.Unmarshal(b.Bytes(), m); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFormat, manifestName, err)
	}
	if err := m.check(); err != nil {
		return err
	}
	if err := begin(m); err != nil {
		return err
	}
	err = verify(m.Program, t, func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err })
	if err != nil {
		return err
	}
	if _, err := next(t, filesName, MaxTotal); err != nil {
		return err
	}
	if err := m.unpack(t, put); err != nil {
		return err
	}
	switch h, err := t.Next(); {
	case err == nil:
		return fmt.Errorf("%w: %.80q stands behind its last member", ErrFormat, h.Name)
	case !errors.Is(err, io.EOF):
		return damaged("its end", err)
	}
	return nil
}

func (m *Manifest) unpack(r io.Reader, put func(File, io.Reader) error) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window),
		zstd.WithDecoderLowmem(true))
	if err != nil {
		return damaged(filesName, err)
	}
	defer z.Close()
	t := tar.NewReader(io.LimitReader(z, m.Total()+(MaxFiles+10)*2048))
	for _, f := range m.Files {
		if err := verify(f, t, func(r io.Reader) error { return put(f, r) }); err != nil {
			return err
		}
	}
	switch h, err := t.Next(); {
	case err == nil:
		return fmt.Errorf("%w: %.80q is not in its manifest", ErrFormat, h.Name)
	case !errors.Is(err, io.EOF):
		return damaged(filesName, err)
	}
	if n, err := io.CopyN(io.Discard, z, 1<<20); err == nil || n > 64<<10 {
		return fmt.Errorf("%w: %s continues after its end", ErrFormat, filesName)
	} else if !errors.Is(err, io.EOF) { // reading to the end checks zstd's checksum
		return damaged(filesName, err)
	}
	return nil
}

// next reads the header of the next member, which must be a regular file with this name and a size up to most.
func next(t *tar.Reader, name string, most int64) (size int64, err error) {
	h, err := t.Next()
	switch {
	case err != nil:
		return 0, damaged(name, err)
	case h.Name != name:
		return 0, fmt.Errorf("%w: %.80q where %s should be", ErrFormat, h.Name, name)
	case h.Typeflag != tar.TypeReg:
		return 0, fmt.Errorf("%w: %s is not a regular file", ErrFormat, name)
	case h.Size > most:
		return 0, fmt.Errorf("%w: %s of %d bytes", ErrFormat, name, h.Size)
	}
	return h.Size, nil
}

// verify calls use with the content of the next member, and checks that the member has f's path, size and hash.
func verify(f File, t *tar.Reader, use func(io.Reader) error) error {
	size, err := next(t, f.Path, MaxFile)
	switch {
	case err != nil:
		return err
	case size != f.Size:
		return fmt.Errorf("%w: %s has %d bytes, its manifest says %d", ErrDamaged, f.Path, size, f.Size)
	}
	h := sha256.New()
	in := &source{r: io.TeeReader(t, h)}
	err = use(in)
	switch {
	case in.err != nil:
		return damaged(f.Path, in.err)
	case err != nil:
		return err
	case hex.EncodeToString(h.Sum(nil)) != f.SHA256:
		return fmt.Errorf("%w: %s has another SHA-256 than in its manifest", ErrDamaged, f.Path)
	}
	return nil
}

// source reads from r, and keeps an error of r apart from errors of the function that reads from the source.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// damaged makes an ErrDamaged of a read error in the member name, but returns errors of the disk (*fs.PathError) and of
// the context unchanged.
func damaged(name string, err error) error {
	if errors.As(err, new(*fs.PathError)) || errors.As(err, new(ended)) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, name, err)
}
