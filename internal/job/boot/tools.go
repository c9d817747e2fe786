package boot

import (
	"errors"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	guestimages "vnic.dev/vnic/guest-images"
)

// shells has the file names of programs that count as shells: for Tools, and for the note about the terminal.
var shells = map[string]bool{"sh": true, "bash": true, "dash": true, "zsh": true, "busybox": true}

// Tools are the commands that guests with a shell get, if this machine has them.
var Tools = strings.Fields(`
	cat chmod clear cp cut date dd df dmesg du echo env ethtool false find free grep head hexdump hostname id
	ip kill less ln ls lsmod lspci mkdir mount mv nproc od ping ps pwd reset rm rmdir sed seq sha256sum sleep
	sort ss stty tail tee timeout top touch tr true tty umount uname uniq uptime wc`)

// toolDirs have an administrator's tools; PATH may lack them.
var toolDirs = []string{"/usr/sbin", "/sbin"}

// notFound makes bash suggest --tools for a command that it does not find (bash(1), COMMAND EXECUTION).
const notFound = `BASH_FUNC_command_not_found_handle%%=() { echo "bash: $1: command not found: if a Debian package ` +
	`has it, vnic boot --tools PACKAGE brings it along" >&2; return 127; }`

// shell selects the first shell that the guest can get: this machine's bash, for its line editing, or sh, or u-root's
// sh.
func (p *program) shell() error {
	p.dir = "/root"
	for _, s := range []struct{ path, args string }{{"/bin/bash", "bash --noprofile --norc"}, {"/bin/sh", "sh"}} {
		if p.files.Program(s.path, s.path) == nil {
			p.path, p.args = s.path, strings.Fields(s.args)
			if s.path == "/bin/bash" {
				p.env = []string{notFound}
			}
			p.tools()
			return nil
		}
	}
	p.args = []string{"sh"}
	return p.ofUserland("sh", path.Join(guestimages.UserlandDir, "sh"), errors.New(
		"no shell on this machine, no /bin/bash and no /bin/sh, nor in this vnic: name a command, after --"))
}

func (p *program) tools() {
	notes := p.files.Notes
	defer func() { p.files.Notes = notes }()
	if !p.files.Has("/bin/sh") {
		_ = p.files.Program("/bin/sh", "/bin/sh")
	}
	for _, t := range Tools {
		found, err := exec.LookPath(t)
		for _, dir := range toolDirs {
			if err != nil {
				found, err = exec.LookPath(filepath.Join(dir, t))
			}
		}
		if err == nil && filepath.IsAbs(found) && !p.files.Has(found) {
			_ = p.files.Program(found, found)
		}
	}
	for _, term := range p.terms {
		if term == "" || filepath.Base(term) != term {
			continue
		}
		for _, dir := range []string{"/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo"} { // terminfo(5)
			_ = p.files.Copy(filepath.Join(dir, term[:1], term), filepath.Join(dir, term[:1], term))
		}
	}
}
