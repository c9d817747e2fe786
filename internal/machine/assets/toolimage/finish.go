package toolimage

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"vnic.dev/vnic/internal/machine/assets"
)

// alternatives are links that update-alternatives(1) would make, with their possible targets, best
// first.
var alternatives = []struct {
	link    string
	targets []string
}{
	{"usr/bin/awk", []string{"gawk", "mawk", "original-awk"}},
	{"usr/bin/nc", []string{"nc.openbsd", "nc.traditional"}},
	{"usr/bin/vi", []string{"vim.basic", "vim.tiny", "nvi"}},
	{"usr/bin/vim", []string{"vim.basic"}},
	{"usr/bin/editor", []string{"vim.basic", "vim.tiny", "nano"}},
	{"usr/bin/pager", []string{"less"}},
	{"usr/bin/telnet", []string{"telnet.netkit", "inetutils-telnet"}},
}

// finish does what maintainer scripts would have done: it makes links, and compiles Python's
// modules.
func finish(ctx context.Context, root string) error {
	if err := assets.MergeUsr(root); err != nil {
		return err
	}
	for _, a := range alternatives {
		for _, t := range a.targets {
			if _, err := os.Stat(filepath.Join(root, "usr/bin", t)); err != nil {
				continue
			}
			if err := os.Symlink(t, filepath.Join(root, a.link)); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			break
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/python3")); err != nil {
		return nil
	}
	return assets.CompilePython(ctx, root)
}
