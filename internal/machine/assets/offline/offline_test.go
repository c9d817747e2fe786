package offline_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"vnic.dev/vnic/internal/machine/assets/offline"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func some() fstest.MapFS {
	noise := make([]byte, 20_000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	return fstest.MapFS{
		"kernel/k/vmlinuz": {Data: noise, Mode: 0o644},
		"qemu/q/empty":     {Mode: 0o600},
		"qemu/q/usr/qemu":  {Data: bytes.Repeat([]byte("qemu "), 50_000), Mode: 0o755},
	}
}

func written(t testing.TB, files fstest.MapFS) []byte {
	t.Helper()
	b, err := offline.Write(t.Context(), offline.Manifest{Vnic: "v1", For: []string{"run"}}, strings.NewReader("program"),
		slices.Collect(maps.Keys(files)), func(p string) (fs.File, error) { return files.Open(p) })
	testkit.OK(t, err)
	return b
}

func read(ctx context.Context, b []byte) (map[string]string, *offline.Manifest, error) {
	got := map[string]string{}
	var manifest *offline.Manifest
	err := offline.Read(ctx, bytes.NewReader(b), func(m *offline.Manifest) error { manifest = m; return nil },
		func(f offline.File, r io.Reader) error {
			c, err := io.ReadAll(r)
			got[f.Path+" "+f.Mode().String()] = string(c)
			return err
		})
	return got, manifest, err
}

// Invariant: offline: an archive has the files that were put into it, executable or not as before,
// and is reproducible.
func TestArchiveGivesBackWhatWentIn(t *testing.T) {
	files := some()
	b := written(t, files)
	if !bytes.Equal(b, written(t, files)) {
		t.Error("the same files give another archive")
	}
	got, m, err := read(t.Context(), b)
	testkit.OK(t, err)
	want := map[string]string{}
	for p, f := range files {
		mode := fs.FileMode(0o644)
		if f.Mode&0o100 != 0 {
			mode = 0o755
		}
		want[p+" "+mode.String()] = string(f.Data)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d files of %d came back as they were", len(got), len(want))
	}
	if m.Vnic != "v1" || !slices.Equal(m.For, []string{"run"}) || m.Total() != 270_000 {
		t.Errorf("manifest %+v", m)
	}
}

// Invariant: offline: an archive that is truncated anywhere before its end marker is refused; one
// with a changed byte is refused, or has the same files.
func TestDamagedArchiveIsRefused(t *testing.T) {
	b := written(t, some())
	end := len(b) - 1024
	for n := 0; n < end-512; n += 1 + n/3 {
		if _, _, err := read(t.Context(), b[:n]); !errors.Is(err, offline.ErrDamaged) && !errors.Is(err, offline.ErrFormat) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	want, _, err := read(t.Context(), b)
	testkit.OK(t, err)
	for n := 0; n < end; n += 499 {
		bad := slices.Clone(b)
		bad[n] ^= 0x10
		if got, _, err := read(t.Context(), bad); err == nil && !maps.Equal(got, want) {
			t.Fatalf("byte %d changed: taken, with other files", n)
		}
	}
}

// Read does not report the end of its context as damage, whatever the cause, nor an error of the disk.
func TestEndedReadIsNoDamage(t *testing.T) {
	b := written(t, some())
	read := func(ctx context.Context, r io.Reader, want error, begin, put func()) {
		t.Helper()
		err := offline.Read(ctx, r, func(*offline.Manifest) error { begin(); return nil },
			func(_ offline.File, r io.Reader) error { put(); return testkit.Err(io.Copy(io.Discard, r)) })
		if !errors.Is(err, want) || errors.Is(err, offline.ErrDamaged) || errors.Is(err, offline.ErrFormat) {
			t.Errorf("%v: got %v", want, err)
		}
	}
	no := func() {}
	for _, want := range []error{errors.New("interrupted"), context.Canceled} {
		ctx, end := context.WithCancelCause(t.Context())
		read(ctx, bytes.NewReader(b), want, no, func() { end(want) })
		read(ctx, bytes.NewReader(b), want, no, no) // ctx has ended before
		ctx, end = context.WithCancelCause(t.Context())
		read(ctx, bytes.NewReader(b), want, func() { end(want) }, no)
	}
	disk := &fs.PathError{Op: "read", Path: "/x", Err: fs.ErrClosed}
	for _, n := range []int{0, 600, len(b) / 2} {
		read(t.Context(), io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(disk)), disk, no, no)
	}
}

// Invariant: offline: an archive with a link, a name that is not local or not in order, too large
// sizes, or a file missing in its manifest is refused.
func TestHostileArchiveIsRefused(t *testing.T) {
	many := make([]entry, offline.MaxFiles+1)
	for i := range many {
		many[i] = entry{name: "f/" + hex.EncodeToString([]byte{byte(i >> 8), byte(i)})}
	}
	for name, c := range map[string]struct {
		files []entry
		edit  func(m *offline.Manifest)
		last  string
		want  error
	}{
		"Up":          {files: []entry{{name: "a/../../x"}}, want: offline.ErrFormat},
		"Absolute":    {files: []entry{{name: "/etc/passwd"}}, want: offline.ErrFormat},
		"Dot":         {files: []entry{{name: "."}}, want: offline.ErrFormat},
		"Empty":       {files: []entry{{name: ""}}, want: offline.ErrFormat},
		"Long":        {files: []entry{{name: strings.Repeat("x", offline.MaxPath+1)}}, want: offline.ErrFormat},
		"Twice":       {files: []entry{{name: "a/x"}, {name: "a/x"}}, want: offline.ErrFormat},
		"Unordered":   {files: []entry{{name: "b/x"}, {name: "a/x"}}, want: offline.ErrFormat},
		"TooMany":     {files: many, want: offline.ErrFormat},
		"Symlink":     {files: []entry{{name: "a/x", kind: tar.TypeSymlink}}, want: offline.ErrFormat},
		"HardLink":    {files: []entry{{name: "a/x", kind: tar.TypeLink}}, want: offline.ErrFormat},
		"Device":      {files: []entry{{name: "a/x", kind: tar.TypeChar}}, want: offline.ErrFormat},
		"OtherName":   {files: []entry{{name: "a/x", tarName: "a/y"}}, want: offline.ErrFormat},
		"BehindLast":  {files: []entry{{name: "a/x"}}, last: "more", want: offline.ErrFormat},
		"OtherHash":   {files: []entry{{name: "a/x", content: "c"}}, edit: hash, want: offline.ErrDamaged},
		"NoHash":      {files: []entry{{name: "a/x"}}, edit: noHash, want: offline.ErrFormat},
		"OtherSize":   {files: []entry{{name: "a/x", content: "c"}}, edit: size(2), want: offline.ErrDamaged},
		"NegativSize": {files: []entry{{name: "a/x"}}, edit: size(-1), want: offline.ErrFormat},
		"HugeFile":    {files: []entry{{name: "a/x"}}, edit: size(offline.MaxFile + 1), want: offline.ErrFormat},
		"HugeSum": {files: []entry{{name: "a/x"}, {name: "b/x"}, {name: "c/x"}, {name: "d/x"}, {name: "e/x"}},
			edit: size(offline.MaxFile), want: offline.ErrFormat},
		"OtherFormat": {files: []entry{{name: "a/x"}}, want: offline.ErrVersion,
			edit: func(m *offline.Manifest) { m.Format++ }},
		"OtherProgram": {files: []entry{{name: "a/x"}}, want: offline.ErrFormat,
			edit: func(m *offline.Manifest) { m.Program.Path = "vnic" }},
	} {
		t.Run(name, func(t *testing.T) {
			b := craft(t, c.files, c.edit, c.last)
			if _, _, err := read(t.Context(), b); !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
		})
	}
	// An archive without these faults is read.
	if _, _, err := read(t.Context(), craft(t, []entry{{name: "a/x", content: "c"}, {name: "b/x"}}, nil, "")); err != nil {
		t.Error(err)
	}
}

func hash(m *offline.Manifest)   { m.Files[0].SHA256 = strings.Repeat("0", 64) }
func noHash(m *offline.Manifest) { m.Files[0].SHA256 = "" }
func size(n int64) func(m *offline.Manifest) {
	return func(m *offline.Manifest) {
		for i := range m.Files {
			m.Files[i].Size = n
		}
	}
}

type entry struct {
	name, tarName, content string
	kind                   byte
}

// craft makes an archive without offline.Write. edit changes the manifest, unless it is nil; last is the name of one
// more member; "": none.
func craft(t testing.TB, files []entry, edit func(*offline.Manifest), last string) []byte {
	t.Helper()
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	m := offline.Manifest{Format: offline.Format, Vnic: "v1", For: []string{"run"},
		Program: offline.File{Path: offline.Program, Size: 4, SHA256: sum("prog")}, Trees: json.RawMessage("{}")}
	var inner, packed, outer bytes.Buffer
	tw := tar.NewWriter(&inner)
	for _, f := range files {
		m.Files = append(m.Files, offline.File{Path: f.name, Size: int64(len(f.content)), SHA256: sum(f.content)})
		h := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Size: int64(len(f.content)), Mode: 0o644, Format: tar.FormatPAX}
		if f.tarName != "" {
			h.Name = f.tarName
		}
		if f.kind != 0 {
			h.Typeflag, h.Linkname = f.kind, "../../etc/passwd"
		}
		testkit.OK(t, tw.WriteHeader(h))
		_, err := tw.Write([]byte(f.content))
		testkit.OK(t, err)
	}
	testkit.OK(t, tw.Close())
	z, err := zstd.NewWriter(&packed, zstd.WithEncoderConcurrency(1))
	testkit.OK(t, err)
	_, err = z.Write(inner.Bytes())
	testkit.OK(t, err)
	testkit.OK(t, z.Close())
	if edit != nil {
		edit(&m)
	}
	head, err := json.Marshal(m)
	testkit.OK(t, err)
	tw = tar.NewWriter(&outer)
	add := func(name, content string) {
		testkit.OK(t, tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(content)), Mode: 0o644}))
		_, err := tw.Write([]byte(content))
		testkit.OK(t, err)
	}
	add("manifest.json", string(head))
	add(offline.Program, "prog")
	add("files.tar.zst", packed.String())
	if last != "" {
		add(last, "")
	}
	testkit.OK(t, tw.Close())
	return outer.Bytes()
}

// FuzzImport checks that Read ends, passes only allowed paths and sizes, and returns only errors that it documents.
func FuzzImport(f *testing.F) {
	f.Add(craft(f, []entry{{name: "a/x", content: "c"}, {name: "b/x"}}, nil, ""))
	f.Add(craft(f, []entry{{name: "a/x", kind: tar.TypeSymlink}}, nil, ""))
	f.Add(craft(f, []entry{{name: "a/x", content: "c"}}, size(1<<29), ""))
	f.Add([]byte("vnic"))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := offline.Read(t.Context(), bytes.NewReader(b), func(m *offline.Manifest) error {
			if len(m.Files) > offline.MaxFiles || m.Total() > offline.MaxTotal {
				t.Errorf("%d files of %d bytes", len(m.Files), m.Total())
			}
			return nil
		}, func(f offline.File, r io.Reader) error {
			if !fs.ValidPath(f.Path) {
				t.Errorf("path %q", f.Path)
			}
			n, err := io.Copy(io.Discard, r)
			if n > f.Size {
				t.Errorf("%q: %d bytes of %d", f.Path, n, f.Size)
			}
			return err
		})
		if err != nil && !errors.Is(err, offline.ErrFormat) && !errors.Is(err, offline.ErrDamaged) &&
			!errors.Is(err, offline.ErrVersion) {
			t.Errorf("%v", err)
		}
	})
}
