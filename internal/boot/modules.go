package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loader loads kernel modules from a flat directory. NAME.ko, or NAME.ko.zst, is a module; NAME.needs has the
// names of the modules on which it depends, one a line. In NAME a "-" is written "_".
type loader struct {
	dir   string
	done  map[string]bool
	order []string
}

func (l *loader) load(names []string) error {
	for _, n := range names {
		n = strings.ReplaceAll(n, "-", "_")
		if l.done[n] {
			continue
		}
		l.done[n] = true
		needs, err := os.ReadFile(filepath.Join(l.dir, n+".needs"))
		if err != nil {
			return fmt.Errorf("module %s is not in this guest's image: %w", n, err)
		}
		if err := l.load(strings.Fields(string(needs))); err != nil {
			return err
		}
		if err := insert(filepath.Join(l.dir, n)); err != nil {
			return fmt.Errorf("module %s: %w", n, err)
		}
		l.order = append(l.order, n)
	}
	return nil
}

// insert loads the module base.ko, else base.ko.zst. It returns nil also if there is neither file, as the module may be
// built into the kernel, and if the module is loaded already.
func insert(base string) error {
	flags := 0
	f, err := os.Open(base + ".ko")
	if errors.Is(err, os.ErrNotExist) {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
		f, err = os.Open(base + ".ko.zst")
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
