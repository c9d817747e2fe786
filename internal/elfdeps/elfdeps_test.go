package elfdeps

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

type file struct {
	interp                 string
	soname, rpath, runpath string
	needed                 []string
	machine                elf.Machine
	noSections             bool
}

func (f file) build(t testing.TB) []byte {
	t.Helper()
	if f.machine == 0 {
		f.machine = elf.EM_X86_64
	}
	strs := []byte{0}
	var dyn bytes.Buffer
	put := func(tag elf.DynTag, s string) {
		_ = binary.Write(&dyn, binary.LittleEndian, elf.Dyn64{Tag: int64(tag), Val: uint64(len(strs))})
		strs = append(append(strs, s...), 0)
	}
	for _, n := range f.needed {
		put(elf.DT_NEEDED, n)
	}
	for tag, s := range map[elf.DynTag]string{elf.DT_SONAME: f.soname, elf.DT_RPATH: f.rpath, elf.DT_RUNPATH: f.runpath} {
		if s != "" {
			put(tag, s)
		}
	}
	_ = binary.Write(&dyn, binary.LittleEndian, elf.Dyn64{})
	const header, prog, section = 64, 56, 64
	interpAt := uint64(header + 2*prog)
	interp := append([]byte(f.interp), 0)
	dynAt := interpAt + uint64(len(interp))
	strAt := dynAt + uint64(dyn.Len())
	names := []byte("\x00.dynamic\x00.dynstr\x00.shstrtab\x00")
	namesAt := strAt + uint64(len(strs))
	h := elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
		byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_DYN), Machine: uint16(f.machine), Version: uint32(elf.EV_CURRENT), Ehsize: header,
		Phoff: header, Phentsize: prog, Phnum: 2, Shoff: namesAt + uint64(len(names)), Shentsize: section, Shnum: 4,
		Shstrndx: 3}
	if f.noSections {
		h.Shoff, h.Shnum, h.Shstrndx = 0, 0, 0
	}
	first := elf.Prog64{Type: uint32(elf.PT_INTERP), Off: interpAt, Filesz: uint64(len(interp)),
		Memsz: uint64(len(interp))}
	if f.interp == "" {
		first.Type = uint32(elf.PT_NOTE)
	}
	var b bytes.Buffer
	for _, v := range []any{h, first, elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Off: dynAt, Filesz: uint64(dyn.Len())},
		interp, dyn.Bytes(), strs, names,
		elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_DYNAMIC), Off: dynAt, Size: uint64(dyn.Len()), Link: 2, Entsize: 16},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: strAt, Size: uint64(len(strs))},
		elf.Section64{Name: 18, Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))},
	} {
		testkit.OK(t, binary.Write(&b, binary.LittleEndian, v))
	}
	return b.Bytes()
}

func tree(t *testing.T, files map[string]any) string {
	root := t.TempDir()
	for path, v := range files {
		var b []byte
		switch v := v.(type) {
		case file:
			b = v.build(t)
		case string:
			b = []byte(v)
		}
		path = filepath.Join(root, path)
		testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.OK(t, os.WriteFile(path, b, 0o755))
	}
	return root
}

const ld = "/lib64/ld-linux-x86-64.so.2"

// Invariant: vnic boot: Mistakes are found before anything boots.
func TestLibrariesAreFoundWhereTheLinkerFindsThem(t *testing.T) {
	lib := func(soname string, needed ...string) file { return file{soname: soname, needed: needed} }
	base := map[string]any{
		ld:                 lib("ld-linux-x86-64.so.2"),
		"/usr/lib/libc.so": lib("libc.so"),
	}
	for name, c := range map[string]struct {
		files map[string]any
		env   []string
		want  string
	}{
		"static": {map[string]any{"/p": file{}}, nil, ""},
		"one":    {map[string]any{"/p": file{interp: ld, needed: []string{"libc.so"}}}, nil, ld + " /usr/lib/libc.so"},
		"linker": {map[string]any{"/p": file{interp: ld, needed: []string{"ld-linux-x86-64.so.2"}}}, nil, ld},
		"libraries'": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}},
			"/lib64/a.so": lib("a.so", "b.so", "libc.so"), "/lib64/b.so": lib("b.so", "a.so")}, nil, ld +
			" /lib64/a.so /lib64/b.so /usr/lib/libc.so"},
		"origin": {map[string]any{"/opt/bin/p": file{interp: ld, needed: []string{"a.so"}, runpath: "$ORIGIN/../lib"},
			"/opt/lib/a.so": lib("a.so"), "/lib/a.so": lib("a.so")}, nil, ld + " /opt/lib/a.so"},
		"braces": {map[string]any{"/opt/p": file{interp: ld, needed: []string{"a.so"},
			runpath: "/nowhere:${ORIGIN}/$LIB"}, "/opt/lib64/a.so": lib("a.so")}, nil, ld + " /opt/lib64/a.so"},
		"environment": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}, runpath: "/run"},
			"/env/a.so": lib("a.so"), "/run/a.so": lib("a.so")}, []string{"/env"}, ld + " /env/a.so"},
		"rpath first": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}, rpath: "/r"},
			"/env/a.so": lib("a.so"), "/r/a.so": lib("a.so")}, []string{"/env"}, ld + " /r/a.so"},
		"rpath is inherited": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}, rpath: "/r"},
			"/r/a.so": lib("a.so", "b.so"), "/r/b.so": lib("b.so")},
			nil, ld + " /r/a.so /r/b.so"},
		"runpath hides rpath": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}, rpath: "/r", runpath: "/u"},
			"/r/a.so": lib("a.so"), "/lib/a.so": lib("a.so")},
			nil, ld + " /lib/a.so"},
		"configured": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}},
			"/etc/ld.so.conf":          "# mine\ninclude ld.so.conf.d/*.conf\ninclude ld.so.conf\n",
			"/etc/ld.so.conf.d/x.conf": "/opt/x # here\n", "/opt/x/a.so": lib("a.so")}, nil, ld + " /opt/x/a.so"},
		"other machine passed over": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}},
			"/lib64/a.so": file{machine: elf.EM_AARCH64}, "/usr/lib64/a.so": lib("a.so")},
			nil, ld + " /usr/lib64/a.so"},
		"no library passed over": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}},
			"/lib64/a.so": "INPUT(a.so.1)", "/usr/lib64/a.so": lib("a.so")},
			nil, ld + " /usr/lib64/a.so"},
		"by path": {map[string]any{"/p": file{interp: ld, needed: []string{"/x/a.so"}}, "/x/a.so": lib("a.so")}, nil,
			ld + " /x/a.so"},
		"musl": {map[string]any{"/p": file{interp: "/lib/ld-musl-x86_64.so.1", needed: []string{"a.so"}},
			"/lib/ld-musl-x86_64.so.1": lib(""), "/usr/local/lib/a.so": lib("a.so")}, nil,
			"/lib/ld-musl-x86_64.so.1 /usr/local/lib/a.so"},
		"musl's path": {map[string]any{"/p": file{interp: "/lib/ld-musl-x86_64.so.1", needed: []string{"a.so"}},
			"/lib/ld-musl-x86_64.so.1": lib(""), "/etc/ld-musl-x86_64.path": "/m:/n\n", "/n/a.so": lib("a.so")}, nil,
			"/lib/ld-musl-x86_64.so.1 /n/a.so"},
		"thread's end": {map[string]any{"/p": file{interp: ld, needed: []string{"libc.so.6"}},
			"/lib64/libc.so.6": lib("libc.so.6"), "/lib64/libgcc_s.so.1": lib("libgcc_s.so.1")}, nil, ld +
			" /lib64/libc.so.6 /lib64/libgcc_s.so.1"},
	} {
		t.Run(name, func(t *testing.T) {
			program := ""
			for path, v := range base {
				if _, ok := c.files[path]; !ok {
					c.files[path] = v
				}
			}
			for path := range c.files {
				if filepath.Base(path) == "p" {
					program = path
				}
			}
			got, err := Finder{Root: tree(t, c.files), LibraryPath: c.env}.Find(program)
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("%q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestWhatIsMissingIsNamedWithWhoNeedsIt(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]any
		says  []string
	}{
		"library": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}}, ld: file{}},
			[]string{"/p needs the library a.so", "/usr/lib64"}},
		"deeper": {map[string]any{"/p": file{interp: ld, needed: []string{"a.so"}}, ld: file{},
			"/lib/a.so": file{needed: []string{"b.so"}}}, []string{"/lib/a.so needs the library b.so"}},
		"interpreter": {map[string]any{"/p": file{interp: ld}}, []string{"interpreter " + ld}},
	} {
		_, err := Finder{Root: tree(t, c.files)}.Find("/p")
		testkit.ErrorIs(t, err, ErrMissing, "%s", name)
		testkit.ErrorSays(t, err, c.says...)
	}
	for name, v := range map[string]any{"text": "#!/bin/sh\n", "no sections": file{interp: ld, noSections: true},
		"empty": ""} {
		if files, err := (Finder{Root: tree(t, map[string]any{"/p": v, ld: file{}})}).Find("/p"); err == nil {
			t.Errorf("%s: %q, no error", name, files)
		}
	}
}

// The dynamic linker of this machine's /bin/ls finds its libraries among the files that Find returns.
func TestProgramOfThisMachineRunsWithWhatIsFound(t *testing.T) {
	files, err := Finder{}.Find("/bin/ls")
	if err != nil || len(files) < 2 {
		t.Skipf("/bin/ls: %q, %v: static, or no such program", files, err)
	}
	dir := t.TempDir()
	for _, path := range files[1:] {
		b := testkit.Must(os.ReadFile(path))(t)
		testkit.OK(t, os.WriteFile(filepath.Join(dir, filepath.Base(path)), b, 0o755))
	}
	cmd := exec.CommandContext(t.Context(), files[0], "--inhibit-cache", "--library-path", dir, "--list", "/bin/ls")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		_, rest, ok := strings.Cut(line, "=>")
		if path, _, _ := strings.Cut(strings.TrimSpace(rest), " "); ok && filepath.Dir(path) != dir &&
			!slices.Contains(files, path) {
			t.Errorf("not found by us: %s", line)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add(file{interp: ld, needed: []string{"a.so"}, runpath: "$ORIGIN"}.build(f))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		root := t.TempDir()
		path := filepath.Join(root, "p")
		testkit.OK(t, os.WriteFile(path, b, 0o755))
		files, err := Finder{Root: root}.Find("/p")
		if err == nil && len(files) > maxLibraries+1 {
			t.Errorf("%d files", len(files))
		}
	})
}
