package newc

import (
	"bytes"
	"errors"
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

// archived writes an archive.
func archived(t testkit.T, list ...File) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, f := range list {
		testkit.OK(t, w.Add(f))
	}
	testkit.OK(t, w.Close())
	testkit.Equal(t, "length", w.Len(), int64(b.Len()))
	return b.Bytes()
}

// read gives an archive's files, each content by its name.
func read(t testkit.T, b []byte) (list []File, content map[string]string) {
	t.Helper()
	content = map[string]string{}
	for r := NewReader(bytes.NewReader(b)); ; {
		f, err := r.Next()
		if err == io.EOF {
			return list, content
		}
		testkit.OK(t, err)
		list = append(list, f)
		content[f.Name] = string(testkit.Must(io.ReadAll(r))(t))
	}
}

// sample has a file of each kind, nodes with numbers of several digits, and all that a header holds.
func sample() []File {
	all := Text("a/all", "all", 0o640)
	all.UID, all.GID, all.NLink, all.MTime, all.Major, all.Minor = 1000, 100, 2, 0x67890abc, 8, 1
	list := []File{Dir("dev", 0o755), CharDevice("dev/console", 0o600, 5, 1), CharDevice("dev/big", 0o666, 0x123, 0xabcde),
		Text("/init", "\x7fELF", 0o4755), Text("empty", "", 0o644), Text("a/b/c/five!", "12345", 0o600),
		Dir("tmp", 0o1777), Link("a/link", "/init"), all}
	for i := range list {
		list[i].Ino = uint32(i + 1)
	}
	return list
}

// testdata/u-root.cpio is what pkg/cpio of u-root 0.16.0 wrote of the same files: the images that vnic made with it, and
// makes now, have the same bytes.
func TestArchiveIsThatOfURoot(t *testing.T) {
	want := testkit.Must(os.ReadFile("testdata/u-root.cpio"))(t)
	if got := archived(t, sample()...); !bytes.Equal(got, want) {
		t.Errorf("got\n%q\nand not\n%q", got, want)
	}
	list, content := read(t, want)
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	testkit.Equal(t, "names", strings.Join(names, " "),
		". dev dev/console dev/big init empty a a/b a/b/c a/b/c/five! tmp a/link a/all")
	wanted := sample()
	for i, pos := range map[int]int{0: 1, 1: 2, 2: 3, 3: 4, 7: 11, 8: 12} {
		testkit.Equal(t, list[pos].Name, list[pos].Header, wanted[i].Header)
	}
	if d := cmp.Diff([]string{"12345", "/init", "all"},
		[]string{content["a/b/c/five!"], content["a/link"], content["a/all"]}); d != "" {
		t.Error(d)
	}
}

// What a Writer has written, another reader reads, and ours.
func TestAnotherReaderReadsTheSame(t *testing.T) {
	kinds := []uint32{unix.S_IFREG, unix.S_IFDIR, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFLNK}
	rapid.Check(t, func(t *rapid.T) {
		var list []File
		want := map[string]string{}
		for i := range rapid.IntRange(0, 5).Draw(t, "files") {
			f := Text(fmt.Sprintf("%d%s", i, rapid.StringMatching("(/?[a-z \n\xc3\xa9]{1,9}){0,4}").Draw(t, "name")), "", 0)
			f.Mode = rapid.SampledFrom(kinds).Draw(t, "kind") | rapid.Uint32Range(0, 0o7777).Draw(t, "permissions")
			if f.Mode&unix.S_IFMT == unix.S_IFLNK {
				f.Mode = unix.S_IFLNK | 0o777 // what the other reader takes for a link
			}
			f.Ino, f.UID, f.GID = uint32(i+1), rapid.Uint32().Draw(t, "uid"), rapid.Uint32().Draw(t, "gid")
			f.NLink, f.MTime = rapid.Uint32().Draw(t, "nlink"), rapid.Uint32().Draw(t, "mtime")
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
			want[path.Clean(f.Name)] = fmt.Sprintf("%o %d %d:%d %d %d %q", f.Mode, f.Ino, f.UID, f.GID, f.NLink, f.MTime, text)
		}
		b := archived(t, list...)
		theirs := map[string]string{}
		for r := cpio.NewReader(bytes.NewReader(b)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			testkit.OK(t, err)
			text := string(testkit.Must(io.ReadAll(r))(t)) + h.Linkname
			if h.Inode > 0 { // no directory that a path has needed
				theirs[h.Name] = fmt.Sprintf("%o %d %d:%d %d %d %q", uint32(h.Mode), h.Inode, h.Uid, h.Guid, h.Links,
					h.ModTime.Unix(), text)
			}
		}
		if d := cmp.Diff(want, theirs); d != "" {
			t.Fatal(d)
		}
		got, content := read(t, b)
		ours := map[string]string{}
		for _, f := range got {
			if f.Ino > 0 {
				ours[f.Name] = fmt.Sprintf("%o %d %d:%d %d %d %q", f.Mode, f.Ino, f.UID, f.GID, f.NLink, f.MTime,
					content[f.Name])
				i := int(f.Ino) - 1
				testkit.Equal(t, "device", [2]uint32{f.RMajor, f.RMinor}, [2]uint32{list[i].RMajor, list[i].RMinor})
			}
		}
		if d := cmp.Diff(want, ours); d != "" {
			t.Fatal(d)
		}
	})
}

// What the kernel would skip without a word, or an archive cannot hold, is refused.
func TestFilesThatLinuxWouldSkipAreRefused(t *testing.T) {
	long := strings.Repeat("x", unix.PathMax)
	huge := Text("huge", "", 0)
	for want, f := range map[string]File{
		"its name has 4096 bytes": Text(long, "", 0), "a zero byte": Text("a\x00b", "", 0),
		"a link to a name of 4097 bytes": Link("l", long+"x"), "leads out": Text("a/../../b", "", 0),
		"4 GiB": {Name: "huge", Header: huge.Header, Size: math.MaxUint32 + 1, Open: huge.Open},
	} {
		err := NewWriter(io.Discard).Add(f)
		testkit.ErrorIs(t, err, ErrBadFile)
		testkit.ErrorSays(t, err, want)
	}
	w := NewWriter(io.Discard)
	testkit.OK(t, errors.Join(w.Add(Text("a/b", "", 0)), w.Add(Text(long[1:], "", 0)), w.Add(Link("l", long))))
	for _, name := range []string{"a/b", "/a//b", "a", "."} {
		testkit.ErrorIs(t, w.Add(Text(name, "", 0)), fs.ErrExist, name)
	}
}

// A file that is shorter than was said would move all that follows.
func TestContentThatBecameShorterIsAnError(t *testing.T) {
	f := Text("f", "1234", 0)
	f.Size = 5
	testkit.ErrorSays(t, NewWriter(io.Discard).Add(f), "f: has 4 bytes now, and had 5")
	f.Open = func() (io.ReadCloser, error) { return nil, os.ErrPermission }
	testkit.ErrorIs(t, NewWriter(io.Discard).Add(f), os.ErrPermission)
	f = Text("f", "1234", 0)
	f.Size = 3 // one that grows
	_, content := read(t, archived(t, f))
	testkit.Equal(t, "content", content["f"], "123")
}

// Archives follow each other, with zeros between them, and a Reader leaves the next one alone.
func TestReaderEndsBehindTheTrailer(t *testing.T) {
	one := archived(t, Text("a", "1", 0))
	from := bytes.NewReader(append(bytes.Clone(one), one...))
	r := NewReader(from)
	for range 2 {
		testkit.Must(r.Next())(t)
	}
	for range 2 {
		testkit.ErrorIs(t, testkit.Err(r.Next()), io.EOF)
	}
	testkit.Equal(t, "left", from.Len(), len(one))
}

func TestBadArchivesAreRefused(t *testing.T) {
	good := archived(t, Text("abc", "text", 0))
	start := bytes.LastIndex(good[:bytes.Index(good, []byte("abc\x00"))], []byte(magic))
	pos := func(offset int, digits string) []byte {
		b := bytes.Clone(good)
		copy(b[start+offset:], digits)
		return b
	}
	for want, b := range map[string][]byte{
		"the magic is": pos(0, "070702"), "is \"0000000g\"": pos(6, "0000000g"), "is \"+0000000\"": pos(14, "+0000000"),
		"a name of 0 bytes": pos(94, "00000000"), "a name of 4294967295 bytes": pos(94, "FFFFFFFF"),
		"only zero byte": pos(94, "00000003"), "before its trailer": good[:len(good)-1], "before its": pos(54, "FFFFFFFF"),
		"ends before": nil, "it ends": good[:start+50],
	} {
		r := NewReader(bytes.NewReader(b))
		var err error
		for err == nil {
			if _, err = r.Next(); err == nil {
				_, err = io.Copy(io.Discard, r)
			}
		}
		testkit.ErrorIs(t, err, ErrBadArchive, want)
		testkit.ErrorSays(t, err, want)
	}
}

// A Reader takes any bytes. What it reads, a Writer writes, if Linux would take it, and reads again.
func FuzzReader(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(archived(f, sample()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			x, err := r.Next()
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrBadArchive) {
					t.Fatal(err)
				}
				return
			}
			content, err := io.ReadAll(r)
			if err != nil {
				testkit.ErrorIs(t, err, ErrBadArchive)
				return
			}
			x.Open = opener(string(content))
			var out bytes.Buffer
			w := NewWriter(&out)
			if err := w.Add(x); errors.Is(err, ErrBadFile) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			testkit.OK(t, w.Close())
			list, again := read(t, out.Bytes())
			last := list[len(list)-1]
			if last.Header != x.Header || again[last.Name] != string(content) {
				t.Errorf("%+v became %+v", x, last)
			}
		}
	})
}
