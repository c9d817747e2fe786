package confine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

// probing is an environment variable that makes the test's program run probe. Its value is the mode: "on", "log" for a
// trial, or "off" for no confinement.
const probing = "VNIC_CONFINE_PROBE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(probing); mode != "" {
		if err := probe(mode, os.Getenv(probing+"_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type try struct {
	name string
	call string // text of the Refusal for do; "": only Landlock refuses do
	do   func() error
}

func tries(sockets [3]int, dir string) []try {
	nobody := func() unix.Sockaddr { return &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}} }
	return []try{
		{"open a file", "", func() error { _, err := os.ReadFile("/etc/passwd"); return err }},
		{"open another's /proc", "", func() error {
			_, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", os.Getppid()))
			return err
		}},
		{"make a file", "openat", func() error { return os.WriteFile(dir+"/new", nil, 0o600) }},
		{"remove a file", "unlinkat", func() error { return unix.Unlinkat(unix.AT_FDCWD, dir+"/mine", 0) }},
		{"inet socket", "socket, family 2", func() error {
			_, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			return err
		}},
		{"netlink socket", "socket, family 16", func() error {
			_, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)
			return err
		}},
		{"connect", "connect", func() error {
			if err := unix.Connect(sockets[0], nobody()); !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
			return nil
		}},
		{"datagram to anybody", "sendto", func() error { return unix.Sendto(sockets[2], []byte("x"), 0, nobody()) }},
		{"message to anybody", "sendmsg", func() error { return unix.Sendmsg(sockets[2], []byte("x"), nil, nobody(), 0) }},
		{"bind", "bind", func() error { return unix.Bind(sockets[1], &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}) }},
		{"ptrace", "ptrace", func() error {
			if _, _, e := unix.Syscall(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1<<30, 0); e != unix.ESRCH {
				return e
			}
			return nil
		}},
		{"signal", "kill", func() error { return unix.Kill(os.Getppid(), 0) }},
		{"executable memory", "mmap", func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			return err
		}},
		{"executable file", "memfd_create", func() error { _, err := unix.MemfdCreate("x", 0); return err }},
	}
}

type result struct {
	Name, Err string
	Refused   bool
}

// probe runs in a child process of the test, which it confines in modes on and log. It writes the results to standard
// output. Descriptor 3 is a socket to the test.
func probe(mode, dir string) error {
	var sockets [3]int
	for i, kind := range []int{unix.SOCK_STREAM, unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		var err error
		if sockets[i], err = unix.Socket(unix.AF_INET, kind, 0); err != nil {
			return err
		}
	}
	var ready, begin, done sync.WaitGroup
	results := make(chan result, 100)
	list := tries(sockets, dir)
	begin.Add(1)
	for _, t := range list {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			runtime.LockOSThread()
			ready.Done()
			begin.Wait()
			r := result{Name: t.name}
			if err := t.do(); err != nil {
				r.Err, r.Refused = err.Error(), errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
			}
			results <- r
		}()
	}
	ready.Wait()
	if mode != "off" {
		if err := confineProbe(mode); err != nil {
			return err
		}
	}
	begin.Done()
	done.Wait()
	close(results)
	var out []result
	for r := range results {
		out = append(out, r)
	}
	answers := json.NewEncoder(os.Stdout)
	if err := answers.Encode(out); err != nil {
		return err
	}
	err := unix.Exec("/bin/true", []string{"true"}, nil) // does not return if execve is allowed
	return answers.Encode([]result{{"program", err.Error(), errors.Is(err, unix.EPERM)}})
}

func confineProbe(mode string) error {
	if mode == "on" {
		list := []confine.Path{{Path: "/proc/self", Why: "a test"}, {Path: "/proc/not/there", Why: "a test"}}
		if err := confine.Files(list); err == nil {
			return errors.New("a path that is not there is none that is needed")
		}
		list[1].Optional = true
		err := confine.Files(list)
		if err != nil && !errors.Is(err, confine.ErrNoLandlock) {
			return err
		}
	}
	const writes = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC
	list := slices.Concat(confine.GoRuntime(os.Getpid()), confine.Sockets, []confine.Call{
		{Nr: unix.SYS_OPENAT, Name: "openat", If: []confine.Arg{confine.Without(2, writes)}},
		{Nr: unix.SYS_SENDMSG, Name: "sendmsg", If: []confine.Arg{confine.IsInt(0, 3)}},
		{Nr: unix.SYS_GETPPID, Name: "getppid"},
	})
	l, err := confine.Calls(list, mode == "log")
	if err != nil {
		return err
	}
	return errors.Join(unix.Sendmsg(3, []byte("listener"), unix.UnixRights(int(l.Fd())), nil, 0), l.Close())
}

func run(t *testing.T, mode string) (results map[string]result, refused map[string]int) {
	t.Helper()
	a, b, err := scm.Pair()
	testkit.OK(t, err)
	defer a.Close()
	theirs := testkit.Must(b.File())(t)
	testkit.OK(t, b.Close())
	dir := t.TempDir()
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), probing+"="+mode, probing+"_DIR="+dir)
	var output bytes.Buffer
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{theirs}, &output, os.Stderr
	testkit.OK(t, errors.Join(cmd.Start(), theirs.Close()))
	results, refused = map[string]result{}, map[string]int{}
	watched := make(chan error, 1)
	if mode == "off" {
		watched <- nil
	} else {
		buf, oob := make([]byte, 100), make([]byte, 100)
		_, n, _, _, err := a.ReadMsgUnix(buf, oob)
		testkit.OK(t, err)
		var fds scm.FDs
		testkit.OK(t, fds.Collect(oob[:n], 1))
		if fds.Len() != 1 {
			t.Fatal("no listener came")
		}
		listener := fds.Take(0)
		defer unix.Close(listener)
		go func() {
			watched <- confine.Watch(listener, mode == "log", func(r confine.Refusal) { refused[r.String()]++ })
		}()
	}
	testkit.OK(t, cmd.Wait())
	testkit.OK(t, <-watched)
	for d := json.NewDecoder(&output); ; {
		var list []result
		if err := d.Decode(&list); errors.Is(err, io.EOF) {
			return results, refused
		} else {
			testkit.OK(t, err)
		}
		for _, r := range list {
			results[r.Name] = r
		}
	}
}

// Invariant: sandbox: In mode on, a confined process starts, connects and traces nothing, and opens
// files only for reading, with Landlock only those at listed paths.
func TestConfinedProcessIsHeld(t *testing.T) {
	if s := confine.Look(); !s.Seccomp || !s.Listeners || s.Landlock != confine.LandlockABI() {
		t.Logf("not all of it is tried here: %v", s)
	}
	for _, mode := range []string{"off", "log", "on"} {
		results, refused := run(t, mode)
		held := mode == "on"
		if r, ok := results["program"]; ok != held || held && !r.Refused {
			t.Errorf("%s: execve: %v, %+v", mode, ok, r)
		}
		if got, want := refused["execve"], map[string]int{"off": 0, "log": 1, "on": 1}[mode]; got != want {
			t.Errorf("%s: execve is counted %d times", mode, got)
		}
		for _, try := range tries([3]int{}, "") {
			r, made := results[try.name]
			byLandlock := try.call == ""
			switch {
			case !made:
				t.Errorf("%s: %s: not tried", mode, try.name)
			case !held && r.Err != "":
				t.Errorf("%s: %s: %s", mode, try.name, r.Err)
			case byLandlock && confine.LandlockABI() == 0:
				t.Logf("%s: %s: no Landlock here: %+v", mode, try.name, r)
			case held && !r.Refused:
				t.Errorf("on: %s is not refused: %q", try.name, r.Err)
			}
			if got := refused[try.call]; !byLandlock && (got > 0) != (mode != "off") {
				t.Errorf("%s: %s: %q counted %d times, of %v", mode, try.name, try.call, got, refused)
			}
		}
	}
}
