package qemu

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFacts bounds a printed value, in characters.
const maxFacts = 4 << 10

// PrintReport writes a report for an issue about KVM: processor, kernel, clock, KVM's modules and device, QEMU, the
// probe's result and its guest's last lines. It omits the host's name, and what withoutNames takes for names of users
// and files.
func (r *Report) PrintReport(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(name, value string) { fmt.Fprintf(b, "%s: %.*s\n", name, maxFacts, value) }
	fact := func(name, value string) { line(name, withoutNames(strings.TrimSpace(value))) }
	line("processor", processor("/proc/cpuinfo"))
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		fact("kernel", unix.ByteSliceToString(u.Sysname[:])+" "+unix.ByteSliceToString(u.Release[:])+" "+
			unix.ByteSliceToString(u.Version[:])+" "+unix.ByteSliceToString(u.Machine[:]))
	}
	fact("clock", oneOf("/sys/devices/system/clocksource/clocksource0/current_clocksource"))
	modules := 0
	for _, m := range []string{"kvm", "kvm_intel", "kvm_amd", "kvm_pvm"} {
		if p := parameters("/sys/module/" + m); p != "" {
			fact("module "+m, p)
			modules++
		}
	}
	if modules == 0 {
		fact("module kvm", "none")
	}
	if st, err := os.Stat(kvmDevice); err == nil {
		fact(kvmDevice, st.Mode().String())
	}
	if why := kvmMissing(); why != "" {
		fact("opened", "no: "+why)
	} else {
		fact("opened", "yes")
	}
	for _, f := range r.Facts {
		if slices.Contains([]string{"qemu", "kernel", "kvm"}, f.Name) {
			fact("vnic's "+f.Name, f.Value)
		}
	}
	if p := r.Probe; p != nil {
		for _, l := range p.Console {
			fact("console", l)
		}
	}
	return b.Flush()
}

// processor returns the first processor's model, and its flags that matter for KVM; "": the file is unreadable.
func processor(path string) string {
	text, _ := os.ReadFile(path)
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); name == "" {
			break
		}
		fields[name] = strings.TrimSpace(value)
	}
	s := cmp.Or(strings.TrimSpace(fields["vendor_id"]+" "+fields["model name"]),
		strings.TrimSpace(fields["CPU implementer"]+" "+fields["CPU part"]))
	var has []string
	for _, f := range strings.Fields(fields["flags"]) {
		if slices.Contains([]string{"vmx", "svm", "npt", "ept", "hypervisor", "constant_tsc", "nonstop_tsc"}, f) {
			has = append(has, f)
		}
	}
	return strings.TrimSpace(s + " " + strings.Join(has, " "))
}

// parameters returns "loaded" and the readable parameters of the module of a directory in /sys/module; "": there is no
// such directory.
func parameters(dir string) string {
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	files, _ := os.ReadDir(filepath.Join(dir, "parameters"))
	words := []string{"loaded"}
	for _, f := range files {
		if v := oneOf(filepath.Join(dir, "parameters", f.Name())); v != "" {
			words = append(words, f.Name()+"="+v)
		}
	}
	return strings.Join(words, " ")
}

// oneOf returns a file's text without spaces around it; "": unreadable or empty.
func oneOf(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// named matches text that may name a file or a person: after "given:", quoted with a dot or a slash, with a
// slash, or user@host.
var named = regexp.MustCompile(`given: [^)]*|'[^']*[./][^']*'|"[^"]*[./][^"]*"|[^\s();,:"']*/[^\s();,:"']*|\S+@\S+`)

// unnamed matches words with a slash that withoutNames keeps: devices, places in a function, x86/ and dates.
var unnamed = regexp.MustCompile(`^/dev/(net/)?[\w-]+$|\+0x[0-9a-f]+/0x[0-9a-f]+$|^x86/|^\d+/\d+/\d+$`)

func withoutNames(s string) string {
	return named.ReplaceAllStringFunc(s, func(name string) string {
		switch {
		case strings.HasPrefix(name, "given"):
			return "given"
		case strings.Contains(name, "@"):
			return "(who)"
		case unnamed.MatchString(name):
			return name
		}
		return "(file)"
	})
}
