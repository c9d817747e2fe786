package confine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Trial is the list for Calls in a trial run: the holder of its listener is told of each openat, as
// there is no Landlock that could be tried, and asks Opens what would come of it.
func Trial(list []Call) []Call {
	return slices.DeleteFunc(slices.Clone(list), func(c Call) bool { return c.Nr == unix.SYS_OPENAT })
}

// LetLook has another process read this one's memory, for Opens, where otherwise only its parents may
// (Yama's ptrace_scope). Before Calls.
func LetLook(pid int) { _ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(pid), 0, 0, 0) }

// Opens says what of an openat Calls of list, or Files of paths, would refuse; "": nothing. It looks at
// what its path leads to just now: nobody is held by that.
func (r Refusal) Opens(list []Call, paths []Path) string {
	if !slices.ContainsFunc(list, r.is) {
		return r.String()
	}
	path, self, err := r.path()
	if err != nil {
		return fmt.Sprintf("openat of what cannot be read: %v", err)
	}
	if path, err = filepath.EvalSymlinks(path); errors.Is(err, os.ErrNotExist) {
		return "" // fails in any case
	} else if err != nil {
		return fmt.Sprintf("openat: %v", err)
	}
	for _, p := range paths {
		at := ownProc(p.Path, self)
		if path == at || strings.HasPrefix(path, at+"/") {
			return ""
		}
	}
	return "openat of " + path + ", by Landlock"
}

// is says whether a call is as c lists it.
func (r Refusal) is(c Call) bool {
	return int32(c.Nr) == r.Nr && !slices.ContainsFunc(c.If, func(a Arg) bool {
		return uintptr(r.Args[a.Index])&a.Mask != a.Value
	})
}

// path is that of an openat, and the process that makes it.
func (r Refusal) path() (path string, self int, err error) {
	proc := "/proc/" + strconv.Itoa(r.PID)
	if self, err = process(proc); err != nil {
		return "", 0, err
	}
	if path, err = readString(r.PID, uintptr(r.Args[1])); err != nil || filepath.IsAbs(path) {
		return ownProc(path, self), self, err
	}
	dir := proc + "/cwd"
	if fd := int32(r.Args[0]); fd != unix.AT_FDCWD {
		dir = fmt.Sprintf("%s/fd/%d", proc, fd)
	}
	if dir, err = os.Readlink(dir); err != nil {
		return "", 0, err
	}
	return filepath.Join(dir, path), self, nil
}

// ownProc replaces /proc/self, which is another for each process.
func ownProc(path string, self int) string {
	if rest, ok := strings.CutPrefix(path, "/proc/self"); ok && (rest == "" || rest[0] == '/') {
		return "/proc/" + strconv.Itoa(self) + rest
	}
	return path
}

// process is the id of the process that a thread belongs to.
func process(proc string) (int, error) {
	f, err := os.Open(proc + "/status")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "Tgid:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, fmt.Errorf("%s: no process", proc)
}

// readString reads a string of another process, a page at a time: what is behind it may not be there.
func readString(pid int, at uintptr) (string, error) {
	var s []byte
	for len(s) < unix.PathMax {
		b := make([]byte, os.Getpagesize()-int(at)%os.Getpagesize())
		n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}},
			[]unix.RemoteIovec{{Base: at, Len: len(b)}}, 0)
		if err != nil {
			return "", os.NewSyscallError("process_vm_readv", err)
		}
		if i := bytes.IndexByte(b[:n], 0); i >= 0 && len(s)+i < unix.PathMax {
			return string(append(s, b[:i]...)), nil
		}
		s, at = append(s, b[:n]...), at+uintptr(n)
	}
	return "", unix.ENAMETOOLONG
}
