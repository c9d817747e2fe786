package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/elfdeps"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/machine/assets"
)

type program struct {
	path  string
	args  []string
	dir   string
	files *guestimages.Overlay
	terms []string // values of TERM with which it may run
	env   []string

	userland func() (*guestimages.Userland, error)
}

// UseError is wrong use of the command that the options alone do not show.
type UseError struct{ Err error }

func (e *UseError) Error() string { return e.Err.Error() }
func (e *UseError) Unwrap() error { return e.Err }

// prepare finds the command and the files for the guests, before a guest boots.
func (o *Options) prepare(ctx context.Context, tools *packages) (*program, error) {
	p := &program{args: o.Command, files: guestimages.NewOverlay(), dir: "/", userland: o.userland(ctx),
		terms: []string{os.Getenv("TERM")}}
	if o.image {
		p.terms = imageTerms
	}
	for _, c := range o.Copies {
		if err := p.copy(c); err != nil {
			return nil, o.explain("--copy "+c, err)
		}
	}
	p.files.Scripts()
	var err error
	if len(o.Command) == 0 {
		err = p.shell()
	} else {
		err = p.command(o.Command[0], tools)
	}
	if err != nil {
		return nil, o.explain("", err)
	}
	p.system()
	if err := o.checkFits(p.files.Bytes(), 0); err != nil {
		return nil, err
	}
	for _, n := range p.files.Notes {
		o.Note("%s", n)
	}
	return p, nil
}

// explain adds the flag, if any, to an error, and makes it an assets.Missing, with advice, or a UseError.
func (o *Options) explain(flag string, err error) error {
	if flag != "" {
		err = fmt.Errorf("%s: %w", flag, err)
	}
	var none *guestimages.NoInterpreterError
	switch {
	case errors.As(err, &none):
		return &assets.Missing{What: "interpreter " + none.Name, Err: err, Fix: fmt.Sprintf("install it here, or bring one "+
			"to where the guest looks for it: --copy FILE:%s", none.Guest)}
	case errors.Is(err, elfdeps.ErrMissing):
		return &assets.Missing{What: "a library for the guest", Err: err,
			Fix: "install it, name its directory in LD_LIBRARY_PATH, or link statically"}
	case errors.Is(err, guestimages.ErrNoUserland):
		return &assets.Missing{What: "a program for the guest", Err: err,
			Fix: "boot a guest once with the network, or take a release of vnic, which carries them"}
	}
	return &UseError{err}
}

func (p *program) copy(arg string) error {
	host, guest, ok := strings.Cut(arg, ":")
	if host == "" || ok && guest == "" {
		return errors.New("HOST:GUEST, or HOST for the same place in the guest")
	}
	abs, err := filepath.Abs(host)
	if err != nil {
		return err
	}
	if !ok {
		guest = abs
	}
	if strings.HasSuffix(guest, "/") && !strings.HasSuffix(host, "/") { // into the directory guest, as cp does
		guest = path.Join(guest, filepath.Base(abs))
	}
	return p.files.Copy(abs, guest)
}

// command finds the program, in this order: the guest's tool devmem, a path that --copy has filled, a program of the
// packages of --tools, a program of this machine, which is copied, one of u-root's commands.
func (p *program) command(name string, tools *packages) error {
	if wd, err := os.Getwd(); err == nil && usable(wd) {
		p.dir = wd
		defer p.files.Dir(wd)
	}
	switch {
	case name == devmemtool.Name:
		p.path = name
		return nil
	case p.files.Has(name) && path.IsAbs(name):
		return p.copied(name)
	case tools.has(name):
		p.path = path.Join(guesttools.BinDir, name)
		return nil
	case !strings.Contains(name, "/"):
		found, err := exec.LookPath(name)
		if err != nil {
			return p.ofUserland(name, path.Join(guestimages.UserlandDir, name), fmt.Errorf(
				"command %s: not found on this machine, in PATH, nor among u-root's commands%s: if it is a file, give its path; "+
					"if a Debian package has it, give that by --tools PACKAGE", name, tools.nor()))
		}
		name = found
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	if p.files.Has(abs) {
		return p.copied(abs)
	}
	p.path = abs
	if _, err := os.Stat(abs); errors.Is(err, fs.ErrNotExist) {
		return p.ofUserland(name, abs, fmt.Errorf("command %s: no such file on this machine, and no --copy "+
			"puts one there", name))
	}
	if err := p.files.Program(abs, abs); err != nil {
		return fmt.Errorf("command %w", err)
	}
	if shells[path.Base(abs)] || p.script() {
		p.tools()
	}
	return nil
}

// copied selects a program from --copy, and adds its interpreter if it is a script, and Tools if there is a shell.
func (p *program) copied(path string) error {
	p.path = path
	if err := p.files.Script(path); err != nil {
		return fmt.Errorf("command %w", err)
	}
	if p.script() {
		p.tools()
	}
	return nil
}

// script reports whether the guest's files include a shell in /bin or /usr/bin: a script's interpreter, or one that
// --copy brought.
func (p *program) script() bool {
	for s := range shells {
		if p.files.Has("/bin/"+s) || p.files.Has("/usr/bin/"+s) {
			return true
		}
	}
	return false
}

// usable reports whether files for the guest may lie in this directory.
func usable(dir string) bool {
	for _, d := range []string{"/proc", "/sys", "/dev", "/vnic"} {
		if dir == d || strings.HasPrefix(dir, d+"/") {
			return false
		}
	}
	return true
}

// system adds directories and files of /etc that programs expect, but replaces no copied file.
func (p *program) system() {
	for _, dir := range []string{"/root", "/run", "/var/tmp", "/var/log", "/tmp"} {
		p.files.Dir(dir)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n" +
			"tcpdump:x:0:0::/root:/usr/sbin/nologin\n" + // tcpdump changes to this user, whose UID 0 may write its files
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group": "root:x:0:\nnogroup:x:65534:\n", "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	} {
		p.files.Text("/etc/"+name, text)
	}
}
