package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// cacheWithQEMU returns the directory of a cache with QEMU and a kernel. Without one, or where testkit.Boots skips,
// it skips the test.
func cacheWithQEMU(t *testing.T) string {
	t.Helper()
	testkit.Boots(t)
	dir, err := assets.CacheDir(assets.Options{})
	var r *assets.Resolved
	if err == nil {
		r, err = assets.Fetch(t.Context(), assets.Options{CacheDir: dir, Offline: true, VFIOUser: true})
	}
	if err != nil {
		t.Skipf("no QEMU or kernel without the network: %v", err)
	}
	testkit.OK(t, r.Close())
	return dir
}

// atNight skips a test unless VNIC_LONG is set (make test-all).
func atNight(t *testing.T) {
	t.Helper()
	if !testkit.Long() {
		t.Skip("make test-all")
	}
}

// screenOf is a vnic that runs on a pseudoterminal.
type screenOf struct {
	*exec.Cmd
	t      *testing.T
	keys   *os.File // a pseudoterminal's master
	tty    *os.File
	before unix.Termios
	seen   []byte
}

func startOnTerminal(t *testing.T, args ...string) *screenOf {
	t.Helper()
	s := &screenOf{Cmd: exec.Command("vnic", args...), t: t}
	s.Env = append(os.Environ(), assets.EnvCache+"="+cacheWithQEMU(t), "TERM=xterm")
	var err error
	s.keys, s.tty, err = pty.Open()
	testkit.OK(t, err)
	t.Cleanup(func() { _, _ = s.keys.Close(), s.tty.Close() })
	s.before = *testkit.Must(unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS))(t)
	s.Stdin, s.Stdout, s.Stderr = s.tty, s.tty, s.tty
	s.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	testkit.OK(t, s.Start())
	t.Cleanup(func() { _ = s.Process.Kill() })
	return s
}

// until reads output until all output so far (seen) contains words.
func (s *screenOf) until(words string) {
	s.t.Helper()
	b := make([]byte, 4096)
	for !bytes.Contains(s.seen, []byte(words)) {
		n, err := s.keys.Read(b)
		if s.seen = append(s.seen, b[:n]...); err != nil {
			s.t.Fatalf("%v without %q, after %q", err, words, s.seen)
		}
	}
}

func (s *screenOf) types(keys string) {
	s.t.Helper()
	testkit.Must(s.keys.WriteString(keys))(s.t)
}

// ends waits for vnic's end, checks that the terminal's settings are as before, and returns the exit status.
func (s *screenOf) ends() int {
	s.t.Helper()
	shown := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(s.keys)
		shown <- b
	}()
	err := s.Wait()
	if after := *testkit.Must(unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS))(s.t); after != s.before {
		s.t.Errorf("the terminal is %+v, and was %+v", after, s.before)
	}
	testkit.OK(s.t, s.tty.Close())
	s.seen = append(s.seen, <-shown...)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return s.ProcessState.ExitCode()
}

func (s *screenOf) shows(words string, times int) {
	s.t.Helper()
	if n := bytes.Count(s.seen, []byte(words)); n != times {
		s.t.Errorf("%q is shown %d times, not %d: %q", words, n, times, s.seen)
	}
}

const left = "\x1b[31mvnic:\x1b[0m left by Ctrl-] q\r\n"

// Typed keys are not echoed into the progress line.
//
// Invariant: vnic boot: Keys that are typed while a guest boots reach its program.
func TestKeysTypedAheadReachTheShell(t *testing.T) {
	s := startOnTerminal(t, "boot", "--offline")
	s.until("Ctrl-] q leaves")
	s.types("echo ty''ped a''head\nexit 7\n")
	s.until("booting")
	s.until("guest0:")
	before, _, _ := strings.Cut(string(s.seen), "guest0:")
	progress := before[:strings.LastIndex(before, "booting")]
	if strings.Contains(progress, "ty''ped") {
		t.Errorf("keys are in the progress line: %q", progress)
	}
	testkit.Equal(t, "status", s.ends(), 7)
	s.shows("typed ahead\r\n", 1)
}

// Invariant: vnic boot: Ctrl-] q leaves a guest that does not answer; keys before it reach the
// guest, as long as no more than MaxKeys bytes wait for it.
func TestGuestsCanBeLeft(t *testing.T) {
	t.Run("while it boots", func(t *testing.T) {
		s := startOnTerminal(t, "boot", "--offline")
		s.until("booting")
		started := children(t, s.Process.Pid)
		s.types("\x1d?\x1dq")
		testkit.Equal(t, "status", s.ends(), exitFailed)
		s.shows("Ctrl-] ? shows this", 2)
		s.shows(left, 1)
		for fd, cmd := range started {
			if !ends(t, fd) {
				t.Errorf("still there: %s", cmd)
			}
		}
	})
	t.Run("while QEMU hangs", func(t *testing.T) {
		s := startOnTerminal(t, "boot", "--offline", "--", "sh", "-c", "echo re''ady; exec cat")
		s.until("ready\r\n")
		started := children(t, s.Process.Pid)
		for fd, cmd := range started {
			if strings.Contains(cmd, "qemu-system") {
				testkit.OK(t, unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0))
			}
		}
		s.types(strings.Repeat("nobody takes this\n", 1<<12)) // more than the pseudoterminal holds
		s.types("\x1dq")
		testkit.Equal(t, "status", s.ends(), exitFailed)
		s.shows(left, 1)
		for fd, cmd := range started {
			if !ends(t, fd) {
				t.Errorf("still there: %s", cmd)
			}
		}
	})
	t.Run("its program has Ctrl-] all the same", func(t *testing.T) {
		atNight(t)
		s := startOnTerminal(t, "boot", "--offline", "--", "sh", "-c",
			"stty raw -echo; echo re''ady; dd bs=1 count=4 2>/dev/null | od -An -tx1")
		s.until("ready")
		s.types("\x1d\x1dx\x1dy")
		testkit.Equal(t, "status", s.ends(), 0)
		s.shows("1d 78 1d 79", 1)
		s.shows("Ctrl-] ? shows this", 1)
	})
}

// runAndSee runs vnic, and calls saw with its stderr so far at each write. notes is all of stderr.
func runAndSee(t *testing.T, saw func(notes string), args ...string) (status int, notes string) {
	t.Helper()
	c := exec.Command("vnic", args...)
	c.Env = append(os.Environ(), assets.EnvCache+"="+cacheWithQEMU(t))
	w := &seen{saw: saw}
	c.Stderr = w
	status, err := exitOf(c, c.Run())
	testkit.OK(t, err)
	return status, w.output.String()
}

type seen struct {
	output strings.Builder
	saw    func(string)
}

func (s *seen) Write(b []byte) (int, error) {
	s.output.Write(b)
	s.saw(s.output.String())
	return len(b), nil
}

func exitOf(c *exec.Cmd, err error) (int, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return c.ProcessState.ExitCode(), nil
}

// Invariant: vnic boot: The end of one guest of several is reported at once.
func TestEndOfOneGuestOfSeveral(t *testing.T) {
	const first = "note: guest1 has ended: exit status 3; "
	t.Run("all", func(t *testing.T) {
		atNight(t)
		ln := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer ln.Close()
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		held := make(chan net.Conn, 1)
		go func() {
			if c, err := ln.Accept(); err == nil {
				held <- c
			}
			close(held)
		}()
		var once sync.Once
		status, notes := runAndSee(t, func(notes string) { // guest0 ends only after the report
			if strings.Contains(notes, first+"guest0 still runs\n") {
				once.Do(func() {
					if c := <-held; c != nil {
						_ = c.Close()
					}
				})
			}
		}, "boot", "--offline", "--guests", "2", "--timeout", "3m", "--", "bash", "-c",
			"[ $VNIC_INDEX = 0 ] || exit 3; cat < /dev/tcp/gateway/"+port+"; exit 5")
		if status != 5 || !strings.HasSuffix(notes, "note: guest0 has ended: exit status 5\n") {
			t.Errorf("status %d: %s", status, notes)
		}
	})
	t.Run("first-failure", func(t *testing.T) {
		atNight(t)
		status, notes := runAndSee(t, func(string) {}, "boot", "--offline", "--guests", "2", "--end", "first-failure", "--",
			"sh", "-c", "[ $VNIC_INDEX = 0 ] || exit 3; sleep 100000")
		if status != 3 || !strings.HasSuffix(notes, first+"--end first-failure ends guest0\n") {
			t.Errorf("status %d: %s", status, notes)
		}
	})
}

// Invariant: vnic boot: --timeout ends the guests, and names the guests that still ran.
func TestTimeLimit(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"boot --offline --guests 2 --timeout 10s -- sleep 100000",
			"vnic: --timeout 10s: guest0 and guest1 still (ran|booted)\n"},
		{"boot --offline --timeout 1ms -- sleep 100000", `vnic: --timeout 1ms: (no guest ran.*|guest0 still booted)` + "\n"},
		{"run --offline --timeout 10s --size 1M --pause-at transfer",
			`vnic: --timeout 10s: guest .* still (ran|booted) \(stage: \w+\)` + "\n"},
		{"run --guest inproc --timeout 2s --size 1M --pause-at transfer",
			`vnic: --timeout 2s: (guest A and guest B still ran|no guest ran) \(stage: .*\)` + "\n"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(c.args, "run --offline") {
				atNight(t)
			}
			status, notes := runAndSee(t, func(string) {}, strings.Fields(c.args)...)
			if status != exitTimeout || !regexp.MustCompile("(?m)^"+c.says+`\z`).MatchString(notes) {
				t.Errorf("status %d: %s", status, notes)
			}
		})
	}
	t.Run("not reached", func(t *testing.T) {
		status, notes := runAndSee(t, func(string) {}, "run", "--guest", "inproc", "--size", "1M", "--timeout",
			fmt.Sprint(time.Hour))
		if status != 0 {
			t.Errorf("status %d: %s", status, notes)
		}
	})
}

// Scripts bring their interpreters, Python and Perl, and the interpreters' own libraries.
func TestScriptsBringTheirInterpreters(t *testing.T) {
	atNight(t)
	for _, name := range []string{"python3", "/usr/bin/perl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	cache, dir := cacheWithQEMU(t), t.TempDir()
	for name, text := range map[string]string{
		"a.py": "#!/usr/bin/env -S python3 -u\nimport hashlib, json, socket, subprocess\n" +
			"r = subprocess.run(['/opt/b.pl'], stdout=subprocess.PIPE, check=True)\n" +
			"print(json.dumps(['python', socket.gethostname(), int(r.stdout), hashlib.sha256(b'').hexdigest()[:8]]))\n",
		"b.pl": "#!/usr/bin/perl -w\nuse strict; use List::Util qw(sum); print sum(1 .. 9);\n",
	} {
		testkit.OK(t, os.WriteFile(dir+"/"+name, []byte(text), 0o755))
	}
	c := exec.Command("vnic", "boot", "--offline", "--cache", cache, "--copy", dir+"/b.pl:/opt/", "--", dir+"/a.py")
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil || string(out) != `["python", "guest0", 45, "e3b0c442"]`+"\n" {
		t.Errorf("%v: %s%s", err, out, errs.String())
	}
}
