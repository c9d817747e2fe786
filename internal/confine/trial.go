package confine

import (
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

// Trial returns list without openat, for [Calls] in a trial run: then [Watch] reports each openat, and [Refusal.Opens]
// can check its path, as Landlock has no trial mode.
func Trial(list []Call) []Call {
	return slices.DeleteFunc(slices.Clone(list), func(c Call) bool { return c.Nr == unix.SYS_OPENAT })
}

// LetLook lets process pid and its descendants read this process's memory, for [Refusal.Opens], in spite of
// Yama's ptrace_scope 1. Call it before [Calls].
func LetLook(pid int) { _ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(pid), 0, 0, 0) }

// Opens describes why r, an openat, would be refused: for its arguments by [Calls] with list, or for its path by
// [Files] with paths; or why the path cannot be read. "": openat would not be refused, or the path does not exist.
// Opens reads the path from the memory of the calling process, which could change it later, so an attacker could evade
// the check.
func (r Refusal) Opens(list []Call, paths []Path) string {
	if !slices.ContainsFunc(list, r.matches) {
		return r.String()
	}
	path, self, err := r.path()
	if err != nil {
		return fmt.Sprintf("openat of what cannot be read: %v", err)
	}
	if path, err = filepath.EvalSymlinks(path); errors.Is(err, os.ErrNotExist) {
		return "" // openat fails in any case, unless list allows O_CREAT
	} else if err != nil {
		return fmt.Sprintf("openat: %v", err)
	}
	for _, p := range paths {
		allowed := ownProc(p.Path, self)
		if path == allowed || strings.HasPrefix(path, allowed+"/") {
			return ""
		}
	}
	return "openat of " + path + ", by Landlock"
}

func (r Refusal) matches(c Call) bool {
	return int32(c.Nr) == r.Nr && !slices.ContainsFunc(c.If, func(a Arg) bool {
		return uintptr(r.Args[a.Index])&a.Mask != a.Value
	})
}

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

func ownProc(path string, self int) string {
	if rest, ok := strings.CutPrefix(path, "/proc/self"); ok && (rest == "" || rest[0] == '/') {
		return "/proc/" + strconv.Itoa(self) + rest
	}
	return path
}

func process(proc string) (int, error) {
	b, err := os.ReadFile(proc + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if id, ok := strings.CutPrefix(line, "Tgid:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, fmt.Errorf("%s: no process", proc)
}

// readString reads a string that ends with a zero byte from another process, page by page: the page after the string
// may not be mapped. ENAMETOOLONG: it has PathMax bytes or more.
func readString(pid int, addr uintptr) (string, error) {
	var s []byte
	for len(s) < unix.PathMax {
		b := make([]byte, os.Getpagesize()-int(addr)%os.Getpagesize())
		n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}},
			[]unix.RemoteIovec{{Base: addr, Len: len(b)}}, 0)
		if err != nil {
			return "", os.NewSyscallError("process_vm_readv", err)
		}
		if i := bytes.IndexByte(b[:n], 0); i >= 0 && len(s)+i < unix.PathMax {
			return string(append(s, b[:i]...)), nil
		}
		s, addr = append(s, b[:n]...), addr+uintptr(n)
	}
	return "", unix.ENAMETOOLONG
}
