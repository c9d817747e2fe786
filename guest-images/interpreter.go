package guestimages

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/limits"
)

// Path is the $PATH of programs in a guest; with --tools the tools' directory comes before it.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + UserlandDir

// maxFirstLine is the kernel's BINPRM_BUF_SIZE.
const maxFirstLine = 256

func firstLine(host string) (string, error) {
	f, err := os.Open(host)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	line, err := bufio.NewReaderSize(io.LimitReader(f, maxFirstLine), maxFirstLine).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("%s: %w", host, err)
	}
	return line, nil
}

// Script adds the interpreter of the file at a guest path, if it is a script that the overlay copies from this machine.
func (o *Overlay) Script(guest string) error {
	host := o.files[strings.TrimPrefix(path.Clean(guest), "/")].from
	if host == "" {
		return nil
	}
	if st, err := os.Stat(host); err != nil || !st.Mode().IsRegular() {
		return err
	}
	line, err := firstLine(host)
	if err != nil || !strings.HasPrefix(line, "#!") {
		return err
	}
	return o.interpreter(host, line, 0)
}

// Scripts adds the interpreters of executable scripts that were passed to Copy (not in a directory), and a note for
// each script whose interpreter cannot be added. Call it after all copies.
func (o *Overlay) Scripts() {
	named := o.named
	for _, guest := range named {
		st, err := os.Stat(o.files[strings.TrimPrefix(guest, "/")].from)
		if err != nil || st.Mode()&0o111 == 0 {
			continue
		}
		if err := o.Script(guest); err != nil {
			o.Notes = append(o.Notes, err.Error()+": the guest cannot run it")
		}
	}
}

// interpreter adds a script's interpreter and, if the interpreter is env, the program that env starts.
func (o *Overlay) interpreter(script, line string, depth int) error {
	if depth >= maxScripts {
		return fmt.Errorf("%s: too many nested script interpreters", script)
	}
	s, err := parseShebang(line)
	if err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	if err := o.runner(script, s.interpreter, s.interpreter, depth); err != nil {
		return err
	}
	switch {
	case s.looksFor == "":
		return nil
	case strings.Contains(s.looksFor, "/"):
		return o.runner(script, s.looksFor, s.looksFor, depth)
	}
	return o.fromPath(script, s.looksFor, depth)
}

// fromPath adds the program that name has in this machine's $PATH, for env to find in the guest: at the same path if
// its directory is in Path, else in /usr/local/bin. It adds none if the overlay has one in a directory of Path.
func (o *Overlay) fromPath(script, name string, depth int) error {
	dirs := filepath.SplitList(Path)
	if slices.ContainsFunc(dirs, func(dir string) bool { return o.Has(path.Join(dir, name)) }) {
		return nil
	}
	target := path.Join("/usr/local/bin", name)
	found, err := exec.LookPath(name)
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err != nil {
		return &NoInterpreterError{script, name, target}
	}
	if slices.Contains(dirs, filepath.Dir(found)) {
		target = found
	}
	return o.runner(script, found, target, depth)
}

// runner adds the program host at the path guest, unless the overlay has a file there.
func (o *Overlay) runner(script, host, guest string, depth int) error {
	if o.Has(guest) {
		return nil
	}
	err := o.program(host, guest, depth+1)
	switch {
	case err == nil:
		o.noteLibrary(host)
	case errors.Is(err, fs.ErrNotExist) && !exists(host):
		return &NoInterpreterError{script, host, guest}
	default:
		err = fmt.Errorf("%s: its interpreter: %w", script, err)
	}
	return err
}

func exists(host string) bool {
	_, err := os.Stat(host)
	return err == nil
}

// alone matches the names of interpreters that need no library.
var alone = regexp.MustCompile(`^(env|sh|[bdkz]?a?sh|busybox|[gmn]?awk|sed|make|bc|expect|jq)$`)

func (o *Overlay) noteLibrary(host string) {
	name := filepath.Base(host)
	if alone.MatchString(name) || runtimeOf(name) != nil {
		return
	}
	o.Notes = append(o.Notes, fmt.Sprintf("the interpreter %s is copied alone: copy the other files that it needs, too",
		host))
}

// A runtime is an interpreter with a library of scripts.
type runtime struct {
	name *regexp.Regexp
	// ask are arguments that make the interpreter print its path and its library's directories, one per line.
	ask  []string
	skip *regexp.Regexp // matches names that are not copied
}

// Packages that users have installed (site-packages) are not copied, as they may be gigabytes. Python's
// compiled files are not copied either: they are valid only with the times of their sources.
var runtimes = []runtime{
	{regexp.MustCompile(`^python([23](\.\d+)?)?$`),
		[]string{"-I", "-c", "import os, sys, sysconfig; p = sysconfig.get_paths(); " +
			"print(os.path.realpath(getattr(sys, '_base_executable', '') or sys.executable), p['stdlib'], " +
			"p['platstdlib'], sep='\\n')"},
		regexp.MustCompile(`^(__pycache__|test|tests|idlelib|turtledemo|tkinter|lib2to3|ensurepip|pydoc_data|` +
			`(site|dist)-packages|config-.*|_tkinter\..*|_test.*\.so|.*\.a)$`)},
	{regexp.MustCompile(`^perl(5[.0-9]*)?$`),
		[]string{"-MConfig", "-e", `print "$^X\n$Config{privlibexp}\n$Config{archlibexp}\n", ` +
			`map {"$_\n"} grep {m{/perl-base$}} @INC`},
		regexp.MustCompile(`^(pod|CORE|.*\.pod|.*\.a)$`)},
}

func runtimeOf(name string) *runtime {
	i := slices.IndexFunc(runtimes, func(r runtime) bool { return r.name.MatchString(name) })
	if i < 0 {
		return nil
	}
	return &runtimes[i]
}

// maxAnswer is the most bytes that an interpreter may print when paths runs it.
const maxAnswer = 64 << 10

// paths runs the interpreter host with the arguments ask, and returns the program and directories that it prints.
// program is "" if host, which may be any program, fails or prints no path of an executable file.
func (r *runtime) paths(host string) (program string, library []string) {
	ctx, cancel := context.WithTimeout(context.Background(), limits.Interpreter.Here())
	defer cancel()
	c := exec.CommandContext(ctx, host, r.ask...)
	answer := limited{full: cancel}
	c.Stdout, c.WaitDelay = &answer, limits.LastOutput.Here()
	if c.Run() != nil {
		return "", nil
	}
	for line := range strings.Lines(answer.buf.String()) {
		line = strings.TrimSpace(line)
		st, err := os.Stat(line)
		switch {
		case !filepath.IsAbs(line) || err != nil:
		case program == "" && st.Mode().IsRegular() && st.Mode()&0o111 != 0:
			program = line
		case program != "" && st.IsDir() && filepath.Dir(line) != "/" && !slices.Contains(library, line):
			library = append(library, line)
		}
	}
	return program, library
}

// limited keeps at most maxAnswer bytes. A Write beyond them calls full and fails.
type limited struct {
	buf  bytes.Buffer // not embedded, as io.Copy would use its ReadFrom
	full func()
}

func (l *limited) Write(b []byte) (int, error) {
	if l.buf.Len()+len(b) > maxAnswer {
		l.full()
		return 0, errors.New("too long an answer")
	}
	return l.buf.Write(b)
}

// withLibrary copies an interpreter of runtimes: its real file, even if host is a version manager's script, and its
// library. At guest it adds a link to the file. ok is false if host is no such interpreter, or paths finds no program.
func (o *Overlay) withLibrary(host, guest string) (ok bool, err error) {
	r := runtimeOf(filepath.Base(host))
	if r == nil {
		return false, nil
	}
	program, library := r.paths(host)
	if program == "" {
		return false, nil
	}
	if !o.Has(program) {
		if err := o.Copy(program, program); err != nil {
			return false, err
		}
	}
	if guest != program {
		if _, err := guestPath(guest); err != nil {
			return false, err
		}
		o.Link(guest, program)
	}
	notes := o.Notes
	defer func() { o.Notes = notes }() // no notes, as the user did not name parts of the library
	for _, dir := range library {
		err := o.copyTree(dir, dir, func(name string) bool { return r.skip.MatchString(name) })
		if err != nil {
			return false, fmt.Errorf("the library of %s: %w", host, err)
		}
	}
	return true, nil
}
