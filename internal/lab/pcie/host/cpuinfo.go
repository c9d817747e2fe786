package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// processor has values of the first processor in /proc/cpuinfo, by the keys of x86 (arch/x86/kernel/cpu/proc.c).
type processor struct {
	vendor, family string
	flags          []string
}

func readProcessor(proc string) (p processor, err error) {
	f, err := os.Open(filepath.Join(proc, "cpuinfo"))
	if err != nil {
		return p, err
	}
	defer f.Close()
	found := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, separated := strings.Cut(lines.Text(), ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch first := separated && strings.EqualFold(key, "processor"); {
		case first && found:
			return p, nil
		case first:
			found = true
		case !found && strings.TrimSpace(lines.Text()) != "":
			return p, fmt.Errorf("error parsing file: Cannot parse  line: %q", lines.Text())
		case key == "vendor" || key == "vendor_id":
			p.vendor = value
		case key == "cpu family":
			p.family = value
		case key == "flags":
			p.flags = strings.Fields(value)
		}
	}
	if err := lines.Err(); err != nil {
		return p, err
	}
	if !found {
		return p, errors.New("error parsing file: no processor")
	}
	return p, nil
}
