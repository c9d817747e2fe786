// Package manual completes cobra's man pages.
package manual

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/report/stat"
)

type entry struct{ term, text string }

func exitEntries(c *cobra.Command) []entry {
	list := []entry{
		{"0", "It was done, and all that was to be proved was."},
		{"1", "It failed, or was interrupted."},
		{"2", "Wrong use: the message says of which flag or argument."},
		{"3", "The machine lacks something, or a kernel or QEMU that was given will not do: the message says what to do."},
	}
	switch c.CommandPath() {
	case "vnic boot":
		list[0] = entry{"0", "The program ended with status 0, in each guest."}
		list = append(list, entry{"other", "The status of the program: of several guests the first one's that is not 0; " +
			"128 and more: a signal ended it. A program can end with 1 to 3, too: vnic's own messages begin with vnic:."})
	case "vnic gpu-fd":
		list = append(list, entry{"other", "The status of the program that it has become."})
	}
	return append(list, entry{fmt.Sprint(128 + int(syscall.SIGPIPE)), "The reader of its standard output has gone."})
}

var environment = []entry{
	{assets.EnvCache, "The cache, as --cache says."},
	{assets.EnvQEMU, "QEMU for guests, as --qemu says."},
	{assets.EnvKernel, "The guests' kernel, as --kernel says."},
	{assets.EnvModules, "The directory with its modules, as --modules says."},
	{assets.EnvHeaders, "The build tree or headers of the kernel, as --headers says."},
	{assets.EnvMirror, "The Debian mirror to fetch from, as --mirror says."},
	{assets.EnvKeyring, "The keyring that signs it, as --keyring says."},
	{guestimages.EnvProgram, "The guests' own program, in place of the one in vnic."},
	{guestimages.EnvGPUModule, "vnicgpu.ko, the driver of guests' GPUs, in place of the one that is built."},
	{guestimages.EnvSource,
		"A checkout of vnic, where vnic builds what it does not carry; unset: the one whose bin it is in."},
	{stat.EnvDir, "Where the sockets of running vnics are, for vnic stat."},
	{"XDG_CACHE_HOME, XDG_RUNTIME_DIR", "Where the cache and these sockets are unless said otherwise."},
	{"LD_LIBRARY_PATH", "Where libraries of programs for guests are looked for, too."},
	{"LISTEN_FDS, LISTEN_PID", "Sockets that vnic serve gets from systemd."},
	{"NO_COLOR", "If it is not empty, nothing is colored."},
	{"TERM", "The terminal; dumb: no line is drawn anew."},
}

var manFiles = []entry{
	{"~/.cache/vnic", "The cache: QEMU, kernels, guests' images and GPU driver. vnic cache lists it and removes from it."},
	{"$XDG_RUNTIME_DIR/vnic/PID.sock", "The counters of a running vnic; without $XDG_RUNTIME_DIR in /run/user/UID/vnic, " +
		"/run/vnic or /tmp/vnic-UID."},
	{"/dev/kvm", "Guests run by it where it works; else by QEMU's own emulation, which is slower."},
}

// manSections returns the sections that cobra does not make (exit status, environment, files), in man(7) macros.
func manSections(c *cobra.Command) string {
	var b strings.Builder
	for _, s := range []struct {
		title string
		list  []entry
	}{{"EXIT STATUS", exitEntries(c)}, {"ENVIRONMENT", environment}, {"FILES", manFiles}} {
		fmt.Fprintf(&b, ".SH %s\n", s.title)
		for _, e := range s.list {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fP\n%s\n", roff(e.term), roff(e.text))
		}
	}
	return b.String()
}

// roff escapes a text for roff.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "~", `\(ti`, "^", `\(ha`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// Finish returns page, cobra's man page of c, with more sections (exit status, environment, files) before SEE ALSO, or
// else at the end, and with EXAMPLE renamed to EXAMPLES.
func Finish(c *cobra.Command, page string) string {
	page = strings.Replace(page, ".SH EXAMPLE\n", ".SH EXAMPLES\n", 1)
	before, after, more := strings.Cut(page, ".SH SEE ALSO")
	if more {
		after = ".SH SEE ALSO" + after
	}
	return before + manSections(c) + after
}
