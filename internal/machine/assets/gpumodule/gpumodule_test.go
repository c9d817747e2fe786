package gpumodule

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func put(t *testing.T, mode fs.FileMode, text string, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	testkit.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
	testkit.OK(t, os.WriteFile(file, []byte(text), mode))
	return file
}

func bzImage(t *testing.T, banner string) string {
	t.Helper()
	b := make([]byte, 0x400+len(banner)+1)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], 0x400-0x200)
	copy(b[0x400:], banner)
	return put(t, 0o644, string(b), t.TempDir(), "bzImage")
}

const release = "6.12.0-mine"

// user returns options with a kernel, its headers, and main.c with this source. It makes a fake compiler that copies
// main.c as the module, warns if it contains "doubtful", and fails if it contains "wrong".
func user(t *testing.T, source string) Options {
	t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	for _, e := range []string{assets.EnvHeaders, assets.EnvCache, "MAKEFLAGS"} {
		t.Setenv(e, "")
	}
	dir := t.TempDir()
	bin, tree := filepath.Join(dir, "bin"), filepath.Join(dir, "tree")
	cc := put(t, 0o755, `#!/bin/sh
for last; do :; done
: > "${TMPDIR:-/tmp}/cc$$.s" # as gcc leaves it when it is killed
case "$*" in *"/dev/null") exit 0 ;; esac
if grep -q wrong "$last"; then echo "$last:1:1: error: it is wrong" >&2; exit 1; fi
if grep -q doubtful "$last"; then echo "./include/linux/mm_types.h:1:1: warning: it is doubtful" >&2; fi
cp "$last" "${last%/*}/vnicgpu.ko"
`, bin, "mycc")
	put(t, 0o755, "#!/bin/sh\n", bin, "ld")
	put(t, 0o755, "#!/bin/sh\n", bin, "strip")
	t.Setenv("CC", cc)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	put(t, 0o644, release+"\n", tree, releaseFile)
	put(t, 0o644, "CONFIG_X=y\n", tree, configFile)
	put(t, 0o644, "modules:\n\t@$(CC) $(KCFLAGS) -c $(M)/main.c\n", tree, "Makefile")
	return Options{Options: assets.Options{CacheDir: filepath.Join(dir, "cache"), Headers: tree},
		Kernel: assets.Kernel{Version: release, Image: bzImage(t, release+" (me@here) #1 SMP"), Source: assets.SourceGiven},
		Source: fstest.MapFS{"main.c": {Data: []byte(source)}, "Kbuild": {Data: []byte("obj-m := vnicgpu.o\n")},
			"vnicgpu.mod.c": {Data: []byte("left by a build in place")}}}
}

// isMissing checks that err is an *assets.Missing for want, with advice and of one line.
func isMissing(t *testing.T, err error, want error) *assets.Missing {
	t.Helper()
	var m *assets.Missing
	if !errors.As(err, &m) || !errors.Is(err, want) || m.Fix == "" || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v, want %v", err, want)
	}
	return m
}

func TestPackagesOfARelease(t *testing.T) {
	for release, want := range map[string]string{
		"7.2.12+deb14-cloud-amd64": "linux-headers-7.2.12+deb14-cloud-amd64 linux-headers-7.2.12+deb14-common " +
			"linux-kbuild-7.2.12+deb14",
		"7.3.4+deb13-amd64": "linux-headers-7.3.4+deb13-amd64 linux-headers-7.3.4+deb13-common linux-kbuild-7.3.4+deb13",
		"6.12.95+deb12-cloud-amd64": "linux-headers-6.12.95+deb12-cloud-amd64 linux-headers-6.12.95+deb12-common " +
			"linux-kbuild-6.12.95+deb12",
		release: "", "7.2.0": "", "": "", "amd64": "", "-amd64": "", "6.1/../x-amd64": "",
	} {
		names, _, ok := packages(release)
		if got := strings.Join(names, " "); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", release, got, ok)
		}
	}
}

func TestSuitesBeginWithTheKernelsOwn(t *testing.T) {
	list := suites("sid")
	if list[0] != "sid" || strings.Count(strings.Join(list, " "), "sid") != 1 {
		t.Errorf("%q", list)
	}
	list = suites("")
	if list[0] != assets.Suites()[0] || list[len(list)-1] != "sid" {
		t.Errorf("%q", list)
	}
	file := put(t, 0o644, "ID=debian\nVERSION_CODENAME=\"some\"\n", t.TempDir(), "os-release")
	testkit.Equal(t, "suite", machineSuite(file), "some")
	testkit.Equal(t, "suite", machineSuite(file+"-none"), "")
}

// Invariant: vnicgpu: The module is built once for a kernel and its source, and then comes from the
// cache, offline as well; another build of the kernel, other headers that the user names or other
// source need another module.
func TestModuleIsBuiltOnce(t *testing.T) {
	o := user(t, "first")
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	path := testkit.Must(Make(t.Context(), o))(t)
	testkit.Equal(t, "temporary files", len(testkit.Must(os.ReadDir(temp))(t)), 0)
	testkit.Equal(t, "module", string(testkit.Must(os.ReadFile(path))(t)), "first")
	if base := filepath.Base(path); !strings.HasPrefix(base, "vnicgpu-"+release+"-") {
		t.Error(base)
	}
	dir := filepath.Dir(path)
	testkit.Equal(t, "files", len(testkit.Must(os.ReadDir(dir))(t)), 1)

	put(t, 0o755, "#!/bin/sh\nexit 1\n", os.Getenv("CC")) // from here on nothing can be compiled
	offline := o
	offline.Offline = true
	testkit.Equal(t, "again", testkit.Must(Make(t.Context(), offline))(t), path)

	key := func(o Options) string {
		h, err := o.ownHeaders()
		testkit.OK(t, err)
		return testkit.Must(o.key(h))(t)
	}
	was := key(o)
	o.Source.(fstest.MapFS)["vnicgpu.mod.c"] = &fstest.MapFile{Data: []byte("another")}
	testkit.Equal(t, "with another file of a build in place", key(o), was)
	for what, change := range map[string]func(o *Options){
		"source": func(o *Options) { o.Source = fstest.MapFS{"main.c": {Data: []byte("second")}} },
		"file": func(o *Options) {
			o.Source = fstest.MapFS{"main.c": {Data: []byte("first")}, "more.h": {},
				"Kbuild": {Data: []byte("obj-m := vnicgpu.o\n")}}
		},
		"build of the kernel": func(o *Options) { o.Kernel.Image = bzImage(t, release+" (me@here) #2 SMP") },
		"headers": func(o *Options) {
			put(t, 0o644, "CONFIG_X=n\n", o.Headers, configFile)
			t.Cleanup(func() { put(t, 0o644, "CONFIG_X=y\n", o.Headers, configFile) })
		},
	} {
		changed := o
		change(&changed)
		if key(changed) == was {
			t.Errorf("another %s gives the same module", what)
		}
	}
}

// The headers of a user's kernel are found by links in its modules' directory, and must match the kernel.
func TestHeadersAreFoundBesideModules(t *testing.T) {
	o := user(t, "first")
	tree := o.Headers
	o.Headers, o.Kernel.Modules = "", t.TempDir()
	testkit.OK(t, os.Symlink("/no/such/tree", filepath.Join(o.Kernel.Modules, "build")))
	isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoHeaders)
	testkit.OK(t, os.Symlink(tree, filepath.Join(o.Kernel.Modules, "source")))
	testkit.Must(Make(t.Context(), o))(t)

	put(t, 0o644, "6.12.0-other\n", tree, releaseFile)
	isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoHeaders)
	t.Setenv(assets.EnvHeaders, tree)
	m := isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoHeaders)
	testkit.Equal(t, "what", m.What, "--headers "+tree)
	testkit.OK(t, os.Remove(filepath.Join(tree, releaseFile)))
	isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoHeaders)
}

// Invariant: vnicgpu: If the module does not compile, or with warnings, the error is one line with
// the path of the log, which is kept until it compiles; no other file is left.
func TestBuildThatFails(t *testing.T) {
	for source, want := range map[string]error{"wrong": ErrBuild, "doubtful": ErrWarnings} {
		o := user(t, source)
		path, err := o.path(testkit.Must(o.ownHeaders())(t))
		dir := filepath.Dir(path)
		testkit.OK(t, err)
		m := isMissing(t, testkit.Err(Make(t.Context(), o)), want)
		if !strings.Contains(m.Err.Error(), logOf(path)) {
			t.Errorf("%v does not name %s", m, logOf(path))
		}
		if log := testkit.Must(os.ReadFile(logOf(path)))(t); !strings.Contains(string(log), source) {
			t.Errorf("the log is %q", log)
		}
		testkit.Equal(t, "files", len(testkit.Must(os.ReadDir(dir))(t)), 1)
		testkit.Equal(t, "doctor", Look(t.Context(), o, "", false).State, assets.Worse)
		put(t, 0o755, "#!/bin/sh\nfor l; do :; done\n[ $l = /dev/null ] || touch ${l%/*}/vnicgpu.ko\n", os.Getenv("CC"))
		testkit.Must(Make(t.Context(), o))(t)
		testkit.Equal(t, "files after all", len(testkit.Must(os.ReadDir(dir))(t)), 1)
		testkit.Equal(t, "doctor", Look(t.Context(), o, "", false).State, assets.Good)
	}
}

// Invariant: vnicgpu: If a kernel's headers cannot be found, or are missing in the cache when
// offline, the error is one line that says what to do.
func TestNoHeaders(t *testing.T) {
	o := user(t, "first")
	o.Headers = ""
	isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoHeaders)
	testkit.Equal(t, "doctor", Look(t.Context(), o, "", true).State, assets.Worse)

	o.Kernel.Version, o.Offline = "7.2.12+deb14-cloud-amd64", true
	isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoHeaders)
	isMissing(t, testkit.Err(Make(t.Context(), o)), assets.ErrOffline)
	testkit.Equal(t, "doctor", Look(t.Context(), o, "", true).State, assets.Good)
	testkit.Equal(t, "doctor", Look(t.Context(), o, "", false).State, assets.Worse)
	testkit.Equal(t, "doctor", Look(t.Context(), o, o.Kernel.Image, false).State, assets.Good)
	testkit.Equal(t, "doctor", Look(t.Context(), o, "/no/such.ko", false).State, assets.Worse)

	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	o.Offline, o.Mirror, o.Keyring = false, "file:"+t.TempDir()+"/debian", o.Kernel.Image
	isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoHeaders)
}

func TestNoCompiler(t *testing.T) {
	o := user(t, "first")
	o.Offline = true
	t.Setenv("CC", "/no/such/compiler")
	isMissing(t, testkit.Err(Make(t.Context(), o)), ErrNoCompiler)
	testkit.Equal(t, "doctor", Look(t.Context(), o, "", false).State, assets.Worse)
	testkit.Equal(t, "doctor", Look(t.Context(), o, "", true).State, assets.Good)
}

// Make builds no module in a cache with a space in its path, which the kernel's Makefiles cannot handle.
func TestCacheThatMakeCannotTake(t *testing.T) {
	o := user(t, "first")
	o.CacheDir += " of mine"
	m := isMissing(t, testkit.Err(Make(t.Context(), o)), ErrCachePath)
	if !strings.Contains(m.Fix, assets.EnvCache) {
		t.Error(m)
	}
}

// The wrapper replaces the option that the compiler lacks, and passes other arguments as they are.
func TestOlderCompiler(t *testing.T) {
	dir := t.TempDir()
	cc := put(t, 0o755, `#!/bin/sh
for a; do case $a in -fmin-*) exit 1 ;; esac; done
printf '%s\n' "$@"
`, dir, "old compiler")
	c := &compiler{cc: assets.ShellQuote(cc)}
	script := put(t, 0o755, c.wrapper(t.Context(), dir), dir, "cc")
	out := testkit.Must(exec.Command(script, "-fmin-function-alignment=16", "-DX=a b", "-c").Output())(t)
	testkit.Equal(t, "arguments", string(out), "-falign-functions=16\n-DX=a b\n-c\n")
}

// Packages of Debian 12 have files in /lib, which finish moves to /usr/lib.
func TestTreeWithoutAMergedUsr(t *testing.T) {
	root := t.TempDir()
	put(t, 0o644, "libc", root, "lib/x/libc.so.6")
	ls := testkit.Must(os.ReadFile(testkit.Must(exec.LookPath("ls"))(t)))(t)
	put(t, 0o755, string(ls), root, "usr/bin/ls")
	testkit.OK(t, finish(t.Context(), root, "usr/bin"))
	testkit.Equal(t, "library", string(testkit.Must(os.ReadFile(filepath.Join(root, "usr/lib/x/libc.so.6")))(t)), "libc")
	testkit.Must(os.Stat(filepath.Join(root, "lib/x/libc.so.6")))(t)
	testkit.Must(os.Stat(filepath.Join(root, "usr/bin/ls.real")))(t)
}
