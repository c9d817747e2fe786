package assets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"vnic.dev/vnic/internal/proc"
)

// MergeUsr links /bin and the like to /usr's in a tree of packages, as Debian's systems have them: packages have no
// such links, a maintainer script makes them.
func MergeUsr(root string) error {
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", dir), 0o755); err != nil {
			return err
		}
		st, err := os.Lstat(filepath.Join(root, dir))
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = os.Symlink("usr/"+dir, filepath.Join(root, dir))
		case err == nil && st.IsDir():
			err = fmt.Errorf("packages with files in /%s: their suite has no merged /usr: name a newer one's mirror", dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CompilePython compiles the modules of the Python in a tree of packages, by that Python, as maintainer scripts do.
// Without, each program compiles what it imports: on an emulated processor that takes longer than most programs.
func CompilePython(ctx context.Context, root string) error {
	python := filepath.Join(root, "usr/bin/python3")
	args := []string{"--library-path", filepath.Join(root, Libraries), python, "-m", "compileall", "-q",
		"--invalidation-mode", "unchecked-hash", "-s", root, "-x", `/(test|idlelib|ensurepip)/`}
	dirs, err := filepath.Glob(filepath.Join(root, "usr/lib/python3*"))
	if err != nil {
		return err
	}
	c := proc.Command{Dir: root, Env: []string{"PYTHONHOME=" + filepath.Join(root, "usr")}}
	if _, err := c.Run(ctx, filepath.Join(root, Loader), append(args, dirs...)...); err != nil {
		return fmt.Errorf("compile Python's modules: %w", err)
	}
	return nil
}
