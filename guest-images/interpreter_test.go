package guestimages

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestFirstLinesOfScripts(t *testing.T) {
	for line, want := range map[string]string{
		"#!/bin/sh\n":                            "/bin/sh ",
		"#!/bin/sh":                              "/bin/sh ",
		"#! \t/bin/sh -e -u \n":                  "/bin/sh ",
		"#!/usr//bin/./perl -w\n":                "/usr/bin/perl ",
		"#!/usr/bin/env python3\n":               "/usr/bin/env python3",
		"#!/usr/bin/env  python3 \n":             "/usr/bin/env python3",
		"#!/usr/bin/env /opt/my/python3\n":       "/usr/bin/env /opt/my/python3",
		"#!/usr/bin/env -S python3 -u\n":         "/usr/bin/env python3",
		"#!/usr/bin/env -Spython3 -u\n":          "/usr/bin/env python3",
		"#!/usr/bin/env -S A=b C=d python3 -u":   "/usr/bin/env python3",
		"#!/usr/bin/env -iS -u HOME python3 -u":  "/usr/bin/env python3",
		"#!/usr/bin/env --split-string=perl -w":  "/usr/bin/env perl",
		"#!/usr/bin/env -vS perl -w":             "/usr/bin/env perl",
		"#!/usr/bin/env -SA=b perl -w":           "/usr/bin/env perl",
		"#!/usr/bin/env --split-string=A=b perl": "/usr/bin/env perl",
	} {
		s, err := parseShebang(line)
		if err != nil || s.interpreter+" "+s.looksFor != want {
			t.Errorf("%q: %+v, %v", line, s, err)
		}
	}
	for line, want := range map[string]string{
		"#!\n":                          "a script without an interpreter",
		"#! \t \n":                      "a script without an interpreter",
		"#!/bin/sh\r\n":                 "ends with CR LF",
		"#!/usr/bin/env python3\r\n":    "ends with CR LF",
		"#!python3\n":                   `"python3" is no absolute path: write #!/usr/bin/env python3`,
		"#!/usr/bin/env\n":              "env, which is told no program",
		"#!/usr/bin/env -S\n":           "env, which is told no program",
		"#!/usr/bin/env -S A=b\n":       "env, which is told no program",
		"#!/usr/bin/env -u\n":           "env, which is told no program",
		"#!/usr/bin/env -SA=b\n":        "env, which is told no program",
		"#!/usr/bin/env python3 -u -O ": `"python3 -u -O": write #!/usr/bin/env -S python3 -u -O`,
	} {
		_, err := parseShebang(line)
		testkit.ErrorSays(t, err, want)
	}
}

func FuzzFirstLine(f *testing.F) {
	for _, s := range []string{"#!/usr/bin/env -S A=b python3 -u\n", "#!/bin/sh -e\n", "#!\n", "#!/usr/bin/env -u"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if s, err := parseShebang("#!" + line); err == nil && !strings.HasPrefix(s.interpreter, "/") {
			t.Errorf("%q: %+v", line, s)
		}
	})
}

func inPath(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	return dir
}

// Invariant: vnic boot: Mistakes are found before anything boots.
func TestInterpretersComeAlong(t *testing.T) {
	bin := inPath(t)
	dir := t.TempDir()
	put(t, filepath.Join(bin, "mine"), []byte("#!/bin/sh\n"))
	byEnv, byPath := filepath.Join(dir, "by-env"), filepath.Join(dir, "by-path")
	put(t, byEnv, []byte("#!/usr/bin/env -S X=y mine -v\n"))
	put(t, byPath, []byte("#!"+bin+"/mine\n"))

	o := NewOverlay()
	testkit.OK(t, o.Program(byEnv, "/run/it"))
	for _, name := range []string{"/run/it", "/usr/bin/env", "/usr/local/bin/mine", "/bin/sh"} {
		if !o.Has(name) { // mine is in /usr/local/bin, as bin is not in the guest's Path
			t.Errorf("%s is missing", name)
		}
	}
	testkit.Equal(t, "notes", strings.Join(o.Notes, "\n"), "the interpreter "+bin+"/mine is copied alone: copy the "+
		"other files that it needs, too")

	o = NewOverlay()
	testkit.OK(t, o.Copy(byPath, "/run/it"))
	testkit.OK(t, o.Copy(byEnv, bin+"/mine")) // the interpreter's path in the guest
	o.Scripts()
	if m := unpacked(t, o); !strings.Contains(m[strings.TrimPrefix(bin, "/")+"/mine"], "X=y") {
		t.Errorf("the interpreter is %q", m[strings.TrimPrefix(bin, "/")+"/mine"])
	}

	o = NewOverlay()
	for guest, host := range map[string]string{"/usr/bin/env": byEnv, "/sbin/nowhere": byEnv} {
		testkit.OK(t, o.Copy(host, guest))
	}
	put(t, byPath, []byte("#!/usr/bin/env nowhere\n"))
	testkit.OK(t, o.Program(byPath, "/run/it"))
}

func TestInterpreterThatIsNotHereIsNamed(t *testing.T) {
	inPath(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	for line, want := range map[string]NoInterpreterError{
		"#!/no/such/python3\n":            {script, "/no/such/python3", "/no/such/python3"},
		"#!/usr/bin/env no-python3\n":     {script, "no-python3", "/usr/local/bin/no-python3"},
		"#!/usr/bin/env -S no-python3 -u": {script, "no-python3", "/usr/local/bin/no-python3"},
		"#!/usr/bin/env /no/python3\n":    {script, "/no/python3", "/no/python3"},
	} {
		put(t, script, []byte(line))
		var none *NoInterpreterError
		if err := NewOverlay().Program(script, "/p"); !errors.As(err, &none) || *none != want {
			t.Errorf("%q: %v", line, err)
		}
		o := NewOverlay()
		testkit.OK(t, o.Copy(script, "/p"))
		o.Scripts()
		if n := strings.Join(o.Notes, "\n"); n != want.Error()+": the guest cannot run it" {
			t.Errorf("%q: notes %s", line, n)
		}
		testkit.OK(t, os.Chmod(script, 0o644))
		o = NewOverlay()
		testkit.OK(t, o.Copy(script, "/p"))
		if o.Scripts(); o.Notes != nil {
			t.Errorf("%q: notes %q", line, o.Notes)
		}
		testkit.OK(t, os.Chmod(script, 0o755))
	}
}

// The program python3 is a script, like a version manager's, that names another file as the real interpreter.
func TestLibraryOfAnInterpreterComesAlong(t *testing.T) {
	bin, root := inPath(t), t.TempDir()
	for _, f := range []string{"bin/python3.99", "lib/python3.99/os.py", "lib/python3.99/json/decoder.py",
		"lib/python3.99/test/test_os.py", "lib/python3.99/__pycache__/os.cpython-399.pyc",
		"lib/python3.99/site-packages/torch/it.so", "other/x.so"} {
		put(t, filepath.Join(root, f), []byte(f))
	}
	testkit.OK(t, os.Symlink(filepath.Join(root, "other"), filepath.Join(root, "linked")))
	put(t, filepath.Join(bin, "python3"), []byte("#!/bin/sh\n[ \"$1\" = -I ] && printf '%s\\n' warning "+root+
		"/bin/python3.99 "+root+"/lib/python3.99 "+root+"/lib/python3.99 "+root+"/linked "+root+"/none relative /\n"))
	script := filepath.Join(root, "script")
	put(t, script, []byte("#!/usr/bin/env python3\n"))
	o := NewOverlay()
	testkit.OK(t, o.Program(script, "/run/it"))
	m := unpacked(t, o)
	prefix := strings.TrimPrefix(root, "/") + "/"
	for name, want := range map[string]string{
		"usr/local/bin/python3": "-> " + root + "/bin/python3.99", prefix + "bin/python3.99": "755 bin/python3.99",
		prefix + "lib/python3.99/os.py":           "755 lib/python3.99/os.py",
		prefix + "lib/python3.99/json/decoder.py": "755 lib/python3.99/json/decoder.py", prefix + "linked/x.so": "755 other/x.so",
		prefix + "lib/python3.99/test": "", prefix + "lib/python3.99/__pycache__": "", prefix + "lib/python3.99/site-packages": "",
	} {
		testkit.Equal(t, name, m[name], want)
	}
	if o.Notes != nil {
		t.Errorf("notes %q", o.Notes)
	}
	// These programs only have the name perl.
	for _, body := range []string{"exit 1", "echo nonsense", "while :; do echo " + strings.Repeat("x", 1000) + "; done"} {
		put(t, filepath.Join(bin, "perl"), []byte("#!/bin/sh\n"+body+"\n"))
		o := NewOverlay()
		testkit.OK(t, o.Program(filepath.Join(bin, "perl"), "/usr/bin/perl"))
		testkit.Equal(t, body, unpacked(t, o)["usr/bin/perl"], "755 #!/bin/sh\n"+body+"\n")
	}
}

// Copy of a link to a directory copies the directory.
func TestLinkToADirectoryIsCopied(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "real/sub/f"), []byte("f"))
	testkit.OK(t, os.Symlink("real", filepath.Join(dir, "link")))
	o := NewOverlay()
	testkit.OK(t, o.Copy(filepath.Join(dir, "link"), "/d"))
	testkit.Equal(t, "file", unpacked(t, o)["d/sub/f"], "755 f")
}
