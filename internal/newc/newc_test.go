package newc

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"vnic.dev/vnic/internal/testkit"
)

func archived(t testkit.T, list ...File) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := Write(&b, list)
	testkit.OK(t, err)
	testkit.Equal(t, "length", n, int64(b.Len()))
	return b.Bytes()
}

// read returns an archive's headers and contents; a link's is its target.
func read(t testkit.T, b []byte) (list []*cpio.Header, content map[string]string) {
	t.Helper()
	content = map[string]string{}
	for r := cpio.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return list, content
		}
		testkit.OK(t, err)
		list = append(list, h)
		content[h.Name] = string(testkit.Must(io.ReadAll(r))(t)) + h.Linkname
	}
}

// sample has directories, character devices, ordinary files and a link.
func sample() []File {
	return []File{Dir("dev", 0o755), CharDevice("dev/console", 0o600, 5, 1), CharDevice("dev/big", 0o666, 0x123, 0xabcde),
		Text("/init", "\x7fELF", 0o4755), Text("empty", "", 0o644), Text("a/b/c/five!", "12345", 0o600),
		Dir("tmp", 0o1777), Link("a/link", "/init"), Text("a/all", "all", 0o640)}
}

// The archive of sample has the bytes of testdata/u-root.cpio, which u-root 0.16.0's pkg/cpio wrote.
func TestArchiveIsThatOfURoot(t *testing.T) {
	want := testkit.Must(os.ReadFile("testdata/u-root.cpio"))(t)
	if got := archived(t, sample()...); !bytes.Equal(got, want) {
		t.Errorf("got\n%q\nand not\n%q", got, want)
	}
	list, content := read(t, want)
	var names []string
	for _, h := range list {
		names = append(names, h.Name)
	}
	testkit.Equal(t, "names", strings.Join(names, " "),
		". dev dev/console dev/big init empty a a/b a/b/c a/b/c/five! tmp a/link a/all")
	if d := cmp.Diff([]string{"12345", "/init", "all"},
		[]string{content["a/b/c/five!"], content["a/link"], content["a/all"]}); d != "" {
		t.Error(d)
	}
}

// Package cpio of cavaliergopher reads the files that Write was given.
func TestAnotherReaderReadsTheSame(t *testing.T) {
	kinds := []uint32{unix.S_IFREG, unix.S_IFDIR, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFLNK}
	rapid.Check(t, func(t *rapid.T) {
		var list []File
		want := map[string]string{}
		for i := range rapid.IntRange(0, 5).Draw(t, "files") {
			f := Text(fmt.Sprintf("%d%s", i, rapid.StringMatching("(/?[a-z \n\xc3\xa9]{1,9}){0,4}").Draw(t, "name")), "", 0)
			f.Mode = rapid.SampledFrom(kinds).Draw(t, "kind") | rapid.Uint32Range(0, 0o7777).Draw(t, "permissions")
			if f.Mode&unix.S_IFMT == unix.S_IFLNK {
				f.Mode = unix.S_IFLNK | 0o777 // the other reader recognizes no link with bits above 0o777
			}
			f.RMajor, f.RMinor = rapid.Uint32().Draw(t, "major"), rapid.Uint32().Draw(t, "minor")
			text := ""
			switch f.Mode & unix.S_IFMT {
			case unix.S_IFREG:
				text = string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "content"))
			case unix.S_IFLNK:
				text = rapid.StringN(1, 20, -1).Draw(t, "target")
			}
			f.Size, f.Open = int64(len(text)), opener(text)
			list = append(list, f)
			want[path.Clean(f.Name)] = fmt.Sprintf("%o %d 0:0 0 0 %q", f.Mode, i+1, text)
		}
		headers, content := read(t, archived(t, list...))
		theirs := map[string]string{}
		for _, h := range headers {
			if h.Inode > 0 { // 0: a directory that Write has added
				theirs[h.Name] = fmt.Sprintf("%o %d %d:%d %d %d %q", uint32(h.Mode), h.Inode, h.Uid, h.Guid, h.Links,
					h.ModTime.Unix(), content[h.Name])
			}
		}
		if d := cmp.Diff(want, theirs); d != "" {
			t.Fatal(d)
		}
	})
}

func TestFilesThatLinuxWouldSkipAreRefused(t *testing.T) {
	long := strings.Repeat("x", unix.PathMax)
	huge := Text("huge", "", 0)
	for want, f := range map[string]File{
		"its name has 4096 bytes": Text(long, "", 0), "a zero byte": Text("a\x00b", "", 0),
		"ends an archive":                Text("TRAILER!!!", "", 0),
		"a link to a name of 4097 bytes": Link("l", long+"x"), "leads out": Text("a/../../b", "", 0),
		"4 GiB": {Name: "huge", Mode: huge.Mode, Size: math.MaxUint32 + 1, Open: huge.Open},
	} {
		_, err := Write(io.Discard, []File{f})
		testkit.ErrorIs(t, err, ErrBadFile)
		testkit.ErrorSays(t, err, want)
	}
	list := []File{Text("a/b", "", 0), Text(long[1:], "", 0), Link("l", long)}
	archived(t, list...)
	for _, name := range []string{"a/b", "/a//b", "a", "."} {
		testkit.ErrorIs(t, testkit.Err(Write(io.Discard, append(list, Text(name, "", 0)))), fs.ErrExist, name)
	}
}

// Shorter content is an error; longer content is truncated.
func TestContentThatBecameShorterIsAnError(t *testing.T) {
	f := Text("f", "1234", 0)
	f.Size = 5
	testkit.ErrorSays(t, testkit.Err(Write(io.Discard, []File{f})), "f: has 4 bytes now, and had 5")
	f.Open = func() (io.ReadCloser, error) { return nil, os.ErrPermission }
	testkit.ErrorIs(t, testkit.Err(Write(io.Discard, []File{f})), os.ErrPermission)
	f = Text("f", "1234", 0)
	f.Size = 3 // the content is longer
	_, content := read(t, archived(t, f))
	testkit.Equal(t, "content", content["f"], "123")
}
