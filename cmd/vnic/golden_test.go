package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// The golden files contain what a user sees. To change one on purpose:
//
//	go test ./cmd/vnic -run Golden -update
//
// and commit it with a line in CHANGELOG.md.
//
// A script compares a transcript of its commands' output with the file "golden" in its archive (txtar). Text that
// differs between runs or machines is left out, or replaced by a name: mostly in <angle brackets>, or $NAME.
var update = flag.Bool("update", false, "write the golden files anew")

func TestGolden(t *testing.T) {
	mask := unix.Umask(0o022)
	t.Cleanup(func() { unix.Umask(mask) })
	if signal.Ignored(unix.SIGHUP) { // commands would ignore it, too
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, unix.SIGHUP)
		t.Cleanup(func() { signal.Stop(hup) })
	}
	testscript.Run(t, goldenParams(t, "testdata/golden", time.Minute, func(*testscript.Env) {}))
}

// TestGoldenOfGuests compares output of booted guests.
func TestGoldenOfGuests(t *testing.T) {
	testkit.Boots(t)
	dir, err := assets.CacheDir(assets.Options{})
	if err == nil {
		_, err = assets.Fetch(t.Context(), assets.Options{CacheDir: dir, Offline: true, VFIOUser: true})
	}
	if err != nil {
		t.Skipf("no QEMU or kernel without the network: %v", err)
	}
	testscript.Run(t, goldenParams(t, "testdata/golden-qemu", 5*time.Minute,
		func(e *testscript.Env) { e.Setenv(assets.EnvCache, dir) }))
}

func TestGoldenDropReasons(t *testing.T) {
	var names []string
	for r := range wire.NumDropReasons {
		names = append(names, r.String()+"\n")
	}
	slices.Sort(names)
	got := strings.Join(names, "")
	const file = "testdata/golden/drop-reasons"
	if *update {
		testkit.OK(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := testkit.Must(os.ReadFile(file))(t)
	if got != string(want) {
		t.Errorf("drop reasons are now\n%snot\n%s", got, want)
	}
}

// goldenParams returns the parameters for the scripts in dir. limit is the longest time for a command.
func goldenParams(t *testing.T, dir string, limit time.Duration, more func(*testscript.Env)) testscript.Params {
	dir, err := filepath.Abs(dir) // inProcess changes the working directory
	testkit.OK(t, err)
	// The scripts' directories are not in $TMPDIR: the name of the directory above, tmp, appears in golden files.
	work := testkit.Must(os.MkdirTemp("/tmp", "vnic-golden"))(t)
	t.Cleanup(func() {
		testkit.OK(t, os.RemoveAll(work))
	})
	commands := map[string]func(*transcript, []string){
		"says": (*transcript).says, "unread": (*transcript).unread, "begin": (*transcript).begin, "end": (*transcript).end,
		"typed": (*transcript).typed, "scrape": (*transcript).scrape, "files": (*transcript).files,
		"initrd": (*transcript).initrd, "port": (*transcript).port, "socket": (*transcript).socket,
		"bzimage": (*transcript).bzimage, "module": (*transcript).module, "program": (*transcript).program,
		"sparse": (*transcript).sparse, "helps": (*transcript).helps,
		"replace": (*transcript).replace, "inherit": (*transcript).inherit,
		"sorted": (*transcript).sorted,
	}
	p := testscript.Params{
		Dir: dir, WorkdirRoot: work, RequireExplicitExec: true, RequireUniqueNames: true, UpdateScripts: *update,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){},
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{
				"HOME": e.WorkDir, "XDG_CACHE_HOME": e.WorkDir + "/cache", "VNIC_RUNTIME_DIR": e.WorkDir + "/rt",
				"TERM": "dumb", "LANG": "C", "TZ": "UTC",
				assets.EnvMirror: "http://127.0.0.1:9/none", // nothing can be downloaded
				// Scripts may set these. environ passes only variables that testscript sets or that are in this map.
				assets.EnvCache: "", "VNIC_ADDR": "", "FROM_HERE": "",
			} {
				e.Setenv(name, value)
			}
			more(e)
			var names []string
			for _, v := range e.Vars {
				name, _, _ := strings.Cut(v, "=")
				names = append(names, name)
			}
			e.Values[transcriptKey{}] = &transcript{env: names, limit: limit, running: map[string]*process{},
				values: map[string]string{}, guests: filepath.Base(dir) == "golden-qemu"}
			return nil
		},
	}
	for name, f := range commands {
		p.Cmds[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if neg {
				ts.Fatalf("! %s: status and output are in the transcript", name)
			}
			tr := ts.Value(transcriptKey{}).(*transcript)
			tr.TestScript = ts
			f(tr, args)
			ts.Check(os.WriteFile(ts.MkAbs("transcript"), tr.text, 0o644))
		}
	}
	return p
}

type transcriptKey struct{}

// transcript collects the output of a script's commands.
type transcript struct {
	*testscript.TestScript
	env     []string // names of variables
	limit   time.Duration
	guests  bool
	text    []byte
	running map[string]*process
	values  map[string]string // for values that clean replaces, the names in their place
	pids    []int             // of background commands

	inherited []*os.File // for the next background command
}

func (tr *transcript) command(ctx context.Context, args []string) *exec.Cmd {
	if len(args) == 0 {
		tr.Fatalf("no command")
	}
	path := args[0]
	if strings.Contains(path, "/") {
		path = tr.MkAbs(path)
	} else {
		thisProcess.Lock()
		found, err := exec.LookPath(path)
		thisProcess.Unlock()
		tr.Check(err)
		path = found
	}
	c := exec.CommandContext(ctx, path, args[1:]...)
	c.Args[0], c.Dir, c.Env = args[0], tr.MkAbs("."), tr.environ()
	c.WaitDelay = 10 * time.Second
	return c
}

// environ returns PWD and the variables in env that are not empty.
func (tr *transcript) environ() []string {
	list := []string{"PWD=" + tr.MkAbs(".")}
	for _, name := range tr.env {
		if value := tr.Getenv(name); value != "" && name != "PWD" {
			list = append(list, name+"="+value)
		}
	}
	return list
}

// status returns an exit status as a shell does: 128 + N after signal N.
func status(c *exec.Cmd, err error) (int, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	w := c.ProcessState.Sys().(syscall.WaitStatus)
	if w.Signaled() {
		return 128 + int(w.Signal()), nil
	}
	return w.ExitStatus(), nil
}

// says runs a command, and adds its status and output. It runs vnic in this process, but not with inproc or --qemu,
// nor in golden-qemu: vnic may then confine its process.
func (tr *transcript) says(args []string) {
	var out, errs bytes.Buffer
	var s int
	if len(args) > 0 && args[0] == "vnic" && !tr.guests && !slices.Contains(args, "inproc") &&
		!slices.Contains(args, "--qemu") {
		s = tr.inProcess(args[1:], &out, &errs)
	} else {
		s = tr.run(args, &out, &errs)
	}
	tr.add(line(args), s, out.String(), errs.String())
}

// helps adds the help of every command.
func (tr *transcript) helps([]string) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		pos := len(tr.text)
		tr.says(append(strings.Fields(c.CommandPath()), "--help"))
		for l := range strings.Lines(string(tr.text[pos:])) {
			if len(l) > 121 && !strings.HasPrefix(c.CommandPath(), "vnic completion") { // cobra's own texts
				tr.Fatalf("%s --help: %d columns: %s", c.CommandPath(), len(l)-1, l)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	walk(root)
}

// unread runs a command whose stdout is a pipe without a reader.
func (tr *transcript) unread(args []string) {
	r, w, err := os.Pipe()
	tr.Check(err)
	tr.Check(r.Close())
	defer func() { _ = w.Close() }()
	var errs bytes.Buffer
	s := tr.run(args, w, &errs)
	tr.add(line(args)+" | (nobody)", s, "", errs.String())
}

func (tr *transcript) run(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), tr.limit)
	defer cancel()
	c := tr.command(ctx, args)
	c.Stdout, c.Stderr = stdout, stderr
	s, err := status(c, c.Run())
	tr.Check(err)
	return s
}

// thisProcess guards working directory and environment.
var thisProcess sync.Mutex

func (tr *transcript) inProcess(args []string, stdout, stderr io.Writer) int {
	thisProcess.Lock()
	defer thisProcess.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), tr.limit)
	defer cancel()
	dir, err := os.Getwd()
	tr.Check(err)
	tr.Check(os.Chdir(tr.MkAbs(".")))
	was := os.Environ()
	setEnviron(tr.environ())
	defer func() {
		setEnviron(was)
		if err := os.Chdir(dir); err != nil {
			panic(err) // other tests must not continue there
		}
	}()
	return realMain(ctx, args, stdout, stderr)
}

// setEnviron sets variables before it removes others: testscript needs PATH meanwhile.
func setEnviron(list []string) {
	set := map[string]bool{}
	for _, v := range list {
		name, value, _ := strings.Cut(v, "=")
		set[name] = true
		_ = os.Setenv(name, value) // the name was valid before, or comes from a script
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !set[name] {
			_ = os.Unsetenv(name)
		}
	}
}

func line(args []string) string {
	var words []string
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " \t\n'\"$;|>&*()\\") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

func (tr *transcript) add(command string, status int, out, errs string) {
	for _, pid := range tr.pids {
		// Only in vnic stat's arguments: another command's may have the same number.
		command = regexp.MustCompile(`^(vnic stat .*)\b`+strconv.Itoa(pid)+`\b`).ReplaceAllString(command, "${1}PID")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "> %s\n= %d", command, status)
	for _, s := range []struct{ name, text string }{{"stdout", out}, {"stderr", errs}} {
		if s.text != "" {
			fmt.Fprintf(&b, ", %s:\n%s", s.name, s.text)
			if !strings.HasSuffix(s.text, "\n") {
				b.WriteString("(no end of line)\n")
			}
			b.WriteString("=")
		}
	}
	tr.append(strings.TrimSuffix(b.String(), "\n=") + "\n\n")
}

func (tr *transcript) append(s string) { tr.text = append(tr.text, tr.clean(s)...) }

var varying = []struct {
	what *regexp.Regexp
	got  string
}{
	{regexp.MustCompile(`/proc/PID/fd/\d+`), "/proc/PID/fd/<n>"},
	{regexp.MustCompile(`\d+ KiB of memory for each, \d+ KiB in all`), "<n> KiB of memory for each, <n> KiB in all"},
	{regexp.MustCompile(`[\d.]+ [KMGT]iB left \([^)]*\)`), "<n> left (<where>)"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\.cpio`), "<hash>.cpio"},
	{regexp.MustCompile(`(?m)(qemu-system-x86_64|(\S*/)?vnic qemu --) \\$`), `<QEMU of this machine> \`},
	{regexp.MustCompile(`\(looked in [^)]*\)`), "(looked in <directories>)"},
	{regexp.MustCompile(`/rt/\d+\.sock\b`), "/rt/PID.sock"},
	{regexp.MustCompile(`\bup \d+s`), "up <n>s"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+/metrics`), "127.0.0.1:<port>/metrics"},
	{regexp.MustCompile(`\d+ packets, \d+ not captured`), "<n> packets, <n> not captured"},
	{regexp.MustCompile(`(?m)^  (devmem|copy): \d+%\n`), ""}, // how far a transfer is
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^"]*"`), `"<time>"`},
}

func (tr *transcript) clean(s string) string {
	s = strings.ReplaceAll(s, tr.Getenv("WORK"), "$WORK")
	for value, name := range tr.values {
		s = regexp.MustCompile(`\b`+value+`\b`).ReplaceAllLiteralString(s, name)
	}
	for _, pid := range tr.pids {
		pattern := regexp.MustCompile(`(process |vnic |vnic stat |/proc/|"pid": )` + strconv.Itoa(pid) + `\b`)
		s = pattern.ReplaceAllString(s, "${1}PID")
	}
	for _, v := range varying {
		s = v.what.ReplaceAllLiteralString(s, v.got)
	}
	return s
}

type process struct {
	*exec.Cmd
	gone      bool // guarded by out.mu
	line      string
	out, errs output
	ended     chan error
}

// output is what a process has written to stdout or stderr.
type output struct {
	mu      *sync.Mutex
	changed *sync.Cond
	b       bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.changed.Broadcast()
	return o.b.Write(b)
}

// begin NAME PATTERN COMMAND...: starts a command in the background, and waits until its output matches PATTERN,
// or for "stdout" until stdout has output; $NAME is its pid.
func (tr *transcript) begin(args []string) {
	if len(args) < 3 {
		tr.Fatalf("usage: begin NAME PATTERN COMMAND...")
	}
	name, pattern := args[0], regexp.MustCompile("(?m)"+args[1])
	ctx, cancel := context.WithTimeout(context.Background(), tr.limit)
	p := &process{Cmd: tr.command(ctx, args[2:]), line: line(args[2:]), ended: make(chan error, 1)}
	mu := new(sync.Mutex)
	changed := sync.NewCond(mu)
	p.out.mu, p.out.changed, p.errs.mu, p.errs.changed = mu, changed, mu, changed
	p.Stdout, p.Stderr = &p.out, &p.errs
	p.ExtraFiles, tr.inherited = tr.inherited, nil
	tr.Check(p.Start())
	for _, f := range p.ExtraFiles {
		tr.Check(f.Close())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := p.Wait()
		cancel()
		mu.Lock()
		defer mu.Unlock()
		p.gone = true
		p.ended <- err
		changed.Broadcast()
	})
	tr.Defer(func() { cancel(); wg.Wait() })
	tr.running[name] = p
	tr.pids = append(tr.pids, p.Process.Pid)
	tr.Setenv(name, strconv.Itoa(p.Process.Pid))
	mu.Lock()
	defer mu.Unlock()
	ready := func() bool {
		if args[1] == "stdout" {
			return p.out.b.Len() > 0
		}
		return pattern.Match(p.out.b.Bytes()) || pattern.Match(p.errs.b.Bytes())
	}
	for !ready() {
		if p.gone {
			tr.Fatalf("%s: it has ended:\n%s%s", p.line, p.out.b.String(), p.errs.b.String())
		}
		changed.Wait()
	}
}

// end NAME [SIGNAL]: sends a background command SIGNAL, if given, and adds its output when it has ended.
func (tr *transcript) end(args []string) {
	if len(args) < 1 || len(args) > 2 || tr.running[args[0]] == nil {
		tr.Fatalf("usage: end NAME [SIGNAL]")
	}
	p, mode := tr.running[args[0]], ""
	if len(args) == 2 {
		sig := unix.SignalNum("SIG" + args[1])
		if sig == 0 {
			tr.Fatalf("no signal %s", args[1])
		}
		tr.Check(p.Process.Signal(sig))
		mode = " # ended by SIG" + args[1]
	}
	s, err := status(p.Cmd, <-p.ended)
	tr.Check(err)
	tr.add(p.line+mode, s, p.out.b.String(), p.errs.b.String())
	delete(tr.running, args[0])
}

var numberLine = regexp.MustCompile(`(?m)^( *"(\w+)": )(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(,?)$`)

// typed [KEY=TYPE|KEY]...: replaces the numbers of each KEY of KEY=TYPE in the transcript's JSON by <TYPE>: number or
// integer. If there is a plain KEY, it also replaces the numbers of other keys, except for plain KEYs, by their type.
func (tr *transcript) typed(args []string) {
	kinds, stay := map[string]string{}, map[string]bool{}
	for _, a := range args {
		if key, kind, ok := strings.Cut(a, "="); ok {
			kinds[key] = kind
		} else {
			stay[a] = true
		}
	}
	done := map[string]bool{}
	tr.text = numberLine.ReplaceAllFunc(tr.text, func(l []byte) []byte {
		m := numberLine.FindSubmatch(l)
		key, kind := string(m[2]), "integer"
		if bytes.ContainsAny(m[3], ".eE") {
			kind = "number"
		}
		want, ok := kinds[key]
		switch {
		case stay[key] || !ok && len(stay) == 0:
			return l
		case ok && want != "number" && want != kind:
			tr.Fatalf("%s is no %s: %s", key, want, m[3])
		case ok:
			kind = want
		}
		done[key] = true
		return fmt.Appendf(nil, "%s<%s>%s", m[1], kind, m[4])
	})
	for key := range kinds {
		if !done[key] {
			tr.Fatalf("%s is not in the transcript", key)
		}
	}
}

// replace PATTERN TEXT: replaces each match of PATTERN in the transcript so far by TEXT.
func (tr *transcript) replace(args []string) {
	if len(args) != 2 {
		tr.Fatalf("usage: replace PATTERN TEXT")
	}
	pattern := regexp.MustCompile("(?m)" + args[0])
	if !pattern.Match(tr.text) {
		tr.Fatalf("nothing is as %s:\n%s", args[0], tr.text)
	}
	tr.text = pattern.ReplaceAll(tr.text, []byte(args[1]))
}

// sorted sorts the last output: guests' lines come in any order.
func (tr *transcript) sorted([]string) {
	pos := bytes.LastIndex(tr.text, []byte("\n= ")) + 1
	pos += bytes.IndexByte(tr.text[pos:], '\n') + 1
	lines := strings.Split(strings.TrimSpace(string(tr.text[pos:])), "\n")
	slices.Sort(lines)
	tr.text = append(tr.text[:pos:pos], strings.Join(lines, "\n")+"\n\n"...)
}

var metricsURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`)

// scrape NAME PATTERN: adds the background command's metrics whose names match PATTERN: HELP and TYPE lines, and
// samples without values.
func (tr *transcript) scrape(args []string) {
	if len(args) != 2 || tr.running[args[0]] == nil {
		tr.Fatalf("usage: scrape NAME PATTERN")
	}
	p, pattern := tr.running[args[0]], regexp.MustCompile("^(# (HELP|TYPE) )?("+args[1]+")")
	p.errs.mu.Lock()
	url := metricsURL.FindString(p.errs.b.String())
	for ; url == "" && !p.gone; url = metricsURL.FindString(p.errs.b.String()) { // stdout may arrive before stderr
		p.errs.changed.Wait()
	}
	p.errs.mu.Unlock()
	client := http.Client{Timeout: tr.limit, Transport: &http.Transport{DisableKeepAlives: true}} // no proxy
	resp, err := client.Get(url)
	tr.Check(err)
	body, err := io.ReadAll(resp.Body)
	tr.Check(errors.Join(err, resp.Body.Close()))
	if resp.StatusCode != http.StatusOK {
		tr.Fatalf("%s: %s", url, resp.Status)
	}
	var b strings.Builder
	for l := range strings.Lines(string(body)) {
		if !pattern.MatchString(l) {
			continue
		}
		if !strings.HasPrefix(l, "#") {
			l = l[:strings.LastIndexByte(l, ' ')] + "\n"
		}
		b.WriteString(l)
	}
	tr.append("> GET /metrics # " + args[1] + "\n= " + resp.Header.Get("Content-Type") + "\n" + b.String() + "\n")
}

// port NAME: listens at a TCP port of 127.0.0.1 until the script ends, and sets NAME to it.
func (tr *transcript) port(args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	tr.Check(err)
	tr.Defer(func() { _ = l.Close() })
	value := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	tr.Setenv(args[0], value)
	tr.values[value] = "$" + args[0]
}

// socket NAME: makes the file of a Unix socket, without a listener.
func (tr *transcript) socket(args []string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: tr.MkAbs(args[0])})
	tr.Check(err)
	l.SetUnlinkOnClose(false)
	tr.Check(l.Close())
}

// inherit listening NAME, inherit connected: opens a Unix socket for the next background command.
func (tr *transcript) inherit(args []string) {
	if len(args) == 2 && args[0] == "listening" {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: tr.MkAbs(args[1])})
		tr.Check(err)
		f, err := l.File()
		tr.Check(err)
		tr.inherited = append(tr.inherited, f)
		tr.Defer(func() { _ = l.Close() })
		return
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	tr.Check(err)
	tr.inherited = append(tr.inherited, os.NewFile(uintptr(pair[0]), "socket"))
	tr.Defer(func() { _ = unix.Close(pair[1]) })
}

func (tr *transcript) sparse(args []string) {
	n, err := strconv.ParseInt(args[1], 10, 64)
	tr.Check(err)
	tr.Check(os.WriteFile(tr.MkAbs(args[0]), nil, 0o644))
	tr.Check(os.Truncate(tr.MkAbs(args[0]), n))
}

// files DIR: lists DIR and the files below it, without golden and transcript of the script.
func (tr *transcript) files(args []string) {
	var b strings.Builder
	root := tr.MkAbs(args[0])
	tr.Check(filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == tr.MkAbs("golden") || path == tr.MkAbs("transcript") {
			return nil
		}
		st, err := e.Info()
		if err == nil {
			name, _ := filepath.Rel(filepath.Dir(root), path)
			fmt.Fprintf(&b, "%v %s\n", st.Mode(), name)
		}
		return err
	}))
	tr.append("> files " + args[0] + "\n" + b.String() + "\n")
}
