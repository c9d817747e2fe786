package offline

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// window is the size in bytes of zstd's window when Write packs, and the largest window that Read accepts.
const window = 32 << 20

// Source opens a file by its path in the archive.
type Source func(path string) (fs.File, error)

// Write returns an archive of the program and of the files at paths. The same vnic makes equal archives from
// equal inputs.
func Write(ctx context.Context, m Manifest, program io.Reader, paths []string, open Source) ([]byte, error) {
	m.Format = Format
	m.Program = File{Path: Program, Exec: true}
	m.Files = nil
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	for _, p := range paths {
		f, err := open(p)
		if err != nil {
			return nil, err
		}
		st, err := f.Stat()
		_ = f.Close()
		if err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("%s: not a regular file", p)
		}
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, File{Path: p, Size: st.Size(), Exec: st.Mode()&0o111 != 0, SHA256: strings.Repeat("0", 64)})
	}
	var packed, files bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // a valid level
	_, err := io.Copy(z, reader{ctx, program})
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("the program: %w", err)
	}
	m.Program.Size, m.Program.SHA256 = int64(packed.Len()), fmt.Sprintf("%x", sha256.Sum256(packed.Bytes()))
	if err := m.check(); err != nil {
		return nil, err
	}
	if err := m.pack(ctx, &files, open); err != nil {
		return nil, err
	}
	head, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(head) + packed.Len() + files.Len() + 16<<10)
	t := tar.NewWriter(&out)
	for _, e := range []struct {
		name    string
		mode    int64
		content []byte
	}{{manifestName, 0o644, head}, {Program, 0o755, packed.Bytes()}, {filesName, 0o644, files.Bytes()}} {
		if err := t.WriteHeader(header(e.name, e.mode, int64(len(e.content)))); err != nil {
			return nil, err
		}
		if _, err := t.Write(e.content); err != nil {
			return nil, err
		}
	}
	err = t.Close() // writes the end
	return out.Bytes(), err
}

// pack writes files.tar.zst to w, and the files' hashes into m.
func (m *Manifest) pack(ctx context.Context, w io.Writer, open Source) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for i := range m.Files {
		f := &m.Files[i]
		if err := t.WriteHeader(header(f.Path, int64(f.Mode()), f.Size)); err != nil {
			return err
		}
		in, err := open(f.Path)
		if err != nil {
			return err
		}
		h := sha256.New()
		n, err := io.Copy(io.MultiWriter(t, h), reader{ctx, in})
		_ = in.Close()
		if err == nil && n != f.Size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		f.SHA256 = hex.EncodeToString(h.Sum(nil))
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}

func header(name string, mode, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size}
}

type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, ended{err}
	}
	return r.r.Read(b)
}

// ended wraps the cause of a context's end as an error of reader.
type ended struct{ error }

func (e ended) Unwrap() error { return e.error }
