package confine_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/testkit"
)

func TestSupportIsDescribed(t *testing.T) {
	for want, s := range map[string]confine.Support{
		"neither seccomp filters nor Landlock": {},
		"seccomp":                              {Seccomp: true},
		"Landlock: files":                      {Landlock: 3},
		"Landlock: files, TCP":                 {Landlock: 5},
		"seccomp, what is refused is counted; Landlock: files, TCP, abstract sockets": {Seccomp: true, Listeners: true,
			Landlock: 6},
	} {
		testkit.Equal(t, "support", s.String(), want)
	}
}

func TestTrialSaysWhatLandlockWouldRefuse(t *testing.T) {
	dir := testkit.Must(filepath.EvalSymlinks(t.TempDir()))(t)
	t.Chdir(dir)
	for _, name := range []string{"in/file", "inner/file"} {
		testkit.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testkit.OK(t, os.WriteFile(name, nil, 0o600))
	}
	testkit.OK(t, os.Symlink("../inner/file", "in/link"))
	testkit.OK(t, os.Symlink("in/file", "link"))
	d := testkit.Must(os.Open("in"))(t)
	defer d.Close()
	fd := uint64(d.Fd())
	list := []confine.Call{{Nr: unix.SYS_OPENAT, Name: "openat",
		If: []confine.Arg{confine.Without(2, unix.O_ACCMODE|unix.O_CREAT)}}}
	paths := []confine.Path{{Path: "/proc/self"}, {Path: dir + "/in"}}
	here := ^uint64(0) - 99 // AT_FDCWD
	by := func(path string) string { return "openat of " + path + ", by Landlock" }
	for _, tt := range []struct {
		dir   uint64
		path  string
		flags uint64
		want  string
	}{
		{here, dir + "/in/file", 0, ""},
		{here, dir + "/in", unix.O_DIRECTORY, ""},
		{here, "in/file", 0, ""},
		{here, "in/../in/file", 0, ""},
		{fd, "file", 0, ""},
		{here, "link", 0, ""},
		{here, "/proc/self/status", 0, ""},
		{here, "/proc/" + strconv.Itoa(os.Getpid()) + "/status", 0, ""},
		{here, "in/none", 0, ""},
		{here, "/etc/passwd", 0, by("/etc/passwd")},
		{here, "/proc/stat", 0, by("/proc/stat")},
		{here, "/proc/self/../1/stat", 0, by("/proc/1/stat")},
		{here, "inner/file", 0, by(dir + "/inner/file")},
		{here, "in/../inner/file", 0, by(dir + "/inner/file")},
		{fd, "../inner/file", 0, by(dir + "/inner/file")},
		{here, "in/link", 0, by(dir + "/inner/file")},
		{here, "/proc/self/cwd/inner", 0, by(dir + "/inner")},
		{here, "in/file", unix.O_WRONLY, "openat"},
		{here, strings.Repeat("x/", 2500), 0, "openat of what cannot be read: file name too long"},
	} {
		b := append([]byte(tt.path), 0)
		r := confine.Refusal{Nr: unix.SYS_OPENAT, PID: os.Getpid(),
			Args: [6]uint64{tt.dir, uint64(reflect.ValueOf(b).Pointer()), tt.flags}}
		testkit.Equal(t, tt.path, r.Opens(list, paths), tt.want)
	}
	r := confine.Refusal{Nr: unix.SYS_OPENAT, PID: os.Getpid(), Args: [6]uint64{here, 4096}}
	if got := r.Opens(list, paths); !strings.HasPrefix(got, "openat of what cannot be read") {
		t.Errorf("no address: %q", got)
	}
}
