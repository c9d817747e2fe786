package selftests

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(t, os.WriteFile(path, []byte(text), mode))
}

func TestSeries(t *testing.T) {
	for version, want := range map[string]string{"7.2.12+deb14-cloud-amd64": "7.2", "6.12": "6.12", "7.3-rc1": "7.3",
		"": "", "next": "", "7": ""} {
		testkit.Equal(t, version, Series(version), want)
	}
}

// Programs run with their tree's loader and libraries, wherever the tree is.
func TestToolsRunByTheirOwnLoader(t *testing.T) {
	root := filepath.Join(t.TempDir(), "cache with spaces/usr/tree")
	libs := filepath.Join(root, assets.Libraries)
	testkit.OK(t, os.MkdirAll(libs, 0o755))
	// this machine's libraries, in place of packages'
	out := testkit.Must(exec.Command("ldd", "/bin/sh").Output())(t)
	for _, f := range strings.Fields(string(out)) {
		if strings.HasPrefix(f, "/") {
			b := testkit.Must(os.ReadFile(f))(t)
			write(t, filepath.Join(libs, filepath.Base(f)), string(b), 0o755)
		}
	}
	sh := testkit.Must(os.ReadFile("/bin/sh"))(t)
	write(t, filepath.Join(root, "usr/bin/sh"), string(sh), 0o755)
	write(t, filepath.Join(root, "usr/lib/gcc/x/libplugin.so"), string(sh), 0o755)
	write(t, filepath.Join(root, "usr/bin/words"), "#!/bin/sh\necho words\n", 0o755)
	testkit.OK(t, os.Symlink("sh", filepath.Join(root, "usr/bin/shell")))
	testkit.OK(t, finishTools(t.Context(), root))

	moved := filepath.Join(t.TempDir(), "moved")
	testkit.OK(t, os.Rename(root, moved))
	for _, name := range []string{"sh", "shell"} {
		// Without a command_name operand, $0 is the name by which the shell was called (POSIX, sh).
		cmd := exec.Command(filepath.Join(moved, "usr/bin", name), "-c", `echo "$0"; exit 7`)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		got, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 7 || string(got) != cmd.Path+"\n" {
			t.Errorf("%s: %v, and calls itself %q", name, cmd.ProcessState, got)
		}
	}
	if b := testkit.Must(os.ReadFile(filepath.Join(moved, "usr/lib/gcc/x/libplugin.so")))(t); string(b) != string(sh) {
		t.Error("a library became a script")
	}
	if b := testkit.Must(os.ReadFile(filepath.Join(moved, "usr/bin/words")))(t); !strings.Contains(string(b), "echo words") {
		t.Error("a script became another one")
	}
	// With a bad library in the tree the program fails.
	write(t, filepath.Join(moved, assets.Libraries, "libc.so.6"), "no library", 0o755)
	if err := exec.Command(filepath.Join(moved, "usr/bin/sh"), "-c", "true").Run(); err == nil {
		t.Error("it runs with other libraries")
	}
}

func TestToolsWithoutProgramsAreRefused(t *testing.T) {
	if err := finishTools(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no programs") {
		t.Errorf("got %v", err)
	}
}

func TestRootHasAMergedUsr(t *testing.T) {
	root := t.TempDir()
	testkit.OK(t, assets.MergeUsr(root))
	write(t, filepath.Join(root, "usr/bin/x"), "", 0o644)
	if _, err := os.Stat(filepath.Join(root, "bin/x")); err != nil {
		t.Error(err)
	}
	testkit.OK(t, assets.MergeUsr(root)) // the second time
	old := t.TempDir()
	write(t, filepath.Join(old, "bin/x"), "", 0o644)
	if err := assets.MergeUsr(old); err == nil || !strings.Contains(err.Error(), "/bin") {
		t.Errorf("got %v", err)
	}
}

func TestFilesAreKnownByPathSizeAndTime(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a/b.ko"), "one", 0o644)
	id := testkit.Must(filesID([]string{dir}))(t)
	testkit.Equal(t, "again", testkit.Must(filesID([]string{dir}))(t), id)
	testkit.OK(t, os.Chtimes(filepath.Join(dir, "a/b.ko"), time.Time{}, time.Unix(1, 0)))
	if testkit.Must(filesID([]string{dir}))(t) == id {
		t.Error("a file of another time makes no other tree")
	}
	if _, err := filesID([]string{filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// If a file that its build uses is added, the image of tests or of modules gets another name; for other files, it does
// not.
func TestImagesFollowTheirInputs(t *testing.T) {
	tools, user, modules := t.TempDir(), t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"make": `for a; do ks=${a#INSTALL_PATH=}; done; mkdir -p "$ks/drivers/net/hw" "$ks/net/lib/py"
cd "$ks"; touch drivers/net/hw/ncdevmem drivers/net/ping.py net/lib/py/ksft.py net/lib/csum ` + listName,
		"gcc": "true", "mksquashfs": `for a; do case $a in */image) : >"$a" ;; esac; done`,
	} {
		write(t, filepath.Join(tools, "usr/bin", name), "#!/bin/sh\n"+text+"\n", 0o755)
	}
	write(t, filepath.Join(user, selftestsDir, "x"), "", 0o644)
	write(t, filepath.Join(modules, "modules.dep"), "", 0o644)
	m := maker{o: &Options{Source: user, Kernel: assets.Kernel{Version: "7.2.1", Modules: modules}}, im: &Images{},
		cache: t.TempDir(), tools: &assets.Tree{Dir: tools}}
	testkit.OK(t, os.Mkdir(filepath.Join(m.cache, "selftests"), 0o755))
	made := func() string {
		testkit.OK(t, m.tests(t.Context()))
		return m.im.Tests + " " + testkit.Must(m.modules(t.Context()))(t)
	}
	last := made()
	for _, c := range []struct {
		file    string
		another bool
	}{
		{selftestsDir + "/net/x.c", true}, {"tools/net/ynl/x.py", true}, {"tools/build/Makefile", true},
		{"include/net/x.h", true}, {"scripts/x", true}, {"arch/x86/include/x.h", true}, {"drivers/net/tun.c", false},
		{modules + "/kernel/x.ko", true}, {modules + "/build/x", false}, {modules + "/vmlinuz", false},
	} {
		path := c.file
		if !filepath.IsAbs(path) {
			path = filepath.Join(user, path)
		}
		write(t, path, "", 0o644)
		now := made()
		testkit.Equal(t, c.file+": another image", now != last, c.another)
		last = now
	}
}

func TestWrongTreesAreNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tools/testing/selftests/drivers/net/ping.py"), "", 0o644)
	write(t, filepath.Join(dir, "drivers/net/tun.c"), "", 0o644)
	if root, err := testsRoot(dir); err != nil || root != filepath.Join(dir, selftestsDir) {
		t.Errorf("%s, %v", root, err)
	}
	if root, err := testsRoot(filepath.Join(dir, selftestsDir)); err != nil || root != filepath.Join(dir, selftestsDir) {
		t.Errorf("%s, %v", root, err)
	}
	var missing *assets.Missing
	for what, err := range map[string]error{"--source " + dir: CheckSource(dir),
		"--tests /dev": func() error { _, err := testsRoot("/dev"); return err }()} {
		if !errors.As(err, &missing) || missing.What != what || missing.Fix == "" {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if _, err := Make(t.Context(), Options{Kernel: assets.Kernel{Version: "next"}}); !errors.As(err, &missing) {
		t.Errorf("a kernel without a series: got %v", err)
	}
	if _, err := Make(t.Context(), Options{Kernel: assets.Kernel{Version: "7.2.1"}, Source: dir}); !errors.As(err, &missing) {
		t.Errorf("a source without tests: got %v", err)
	}
}

func TestOfflineSaysWhatIsMissing(t *testing.T) {
	o := assets.Options{CacheDir: t.TempDir(), Offline: true}
	_, err := Make(t.Context(), Options{Options: o, Kernel: assets.Kernel{Version: "7.2.12"}})
	if !errors.Is(err, assets.ErrOffline) {
		t.Errorf("got %v", err)
	}
	if mb := Megabytes(Options{Options: o, Kernel: assets.Kernel{Version: "7.2.12"}}); mb < 300 || mb > 600 {
		t.Errorf("%d MB", mb)
	}
}

// An old liburing gets the missing declarations, if the kernel's header has zero-copy receive.
func TestLiburingThatIsTooOld(t *testing.T) {
	for _, c := range []struct {
		uring, kernel string
		zcrx, header  bool
	}{
		{"int io_uring_queue_init(); int io_uring_register_ifq();", "IORING_REGISTER_ZCRX_IFQ", true, false},
		{"int io_uring_queue_init();", "IORING_REGISTER_ZCRX_IFQ", true, true},
		{"int io_uring_queue_init();", "IORING_REGISTER_BUFFERS", false, false},
		{"", "IORING_REGISTER_ZCRX_IFQ", false, false},
	} {
		tools := t.TempDir()
		include := filepath.Join(tools, "include")
		testkit.OK(t, os.MkdirAll(filepath.Join(tools, "usr/include/linux"), 0o755))
		testkit.OK(t, os.WriteFile(filepath.Join(tools, "usr/include/linux/io_uring.h"), []byte(c.kernel), 0o644))
		testkit.OK(t, os.WriteFile(filepath.Join(tools, "usr/include/liburing.h"), []byte(c.uring), 0o644))
		got, err := knowsZeroCopy(tools, include)
		testkit.OK(t, err)
		testkit.Equal(t, c.uring+", "+c.kernel, got, c.zcrx)
		_, err = os.Stat(filepath.Join(include, "liburing.h"))
		testkit.Equal(t, "a header", err == nil, c.header)
	}
}
