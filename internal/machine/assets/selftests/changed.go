package selftests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"vnic.dev/vnic/internal/machine/assets"
)

// scripts are the suffixes of files that need no build.
var scripts = []string{".py", ".sh"}

// testsRoot returns dir's tools/testing/selftests or dir: the first of them that has drivers/net. dir comes second,
// because a kernel's tree also has drivers/net, with drivers, at its root.
func testsRoot(dir string) (string, error) {
	for _, root := range []string{filepath.Join(dir, selftestsDir), dir} {
		if st, err := os.Stat(filepath.Join(root, "drivers/net")); err == nil && st.IsDir() {
			return root, nil
		}
	}
	return "", &assets.Missing{What: "--tests " + dir, Err: errors.New("it has no drivers/net"),
		Fix: "name tools/testing/selftests of a kernel's tree, or a directory with the changed files at the same places"}
}

// changed finds or makes the image of a user's scripts below drivers/net and net/lib, which replace the tests' scripts.
// The hash in the image's name covers the scripts' names and contents.
func (m *maker) changed(ctx context.Context) (string, error) {
	root, err := testsRoot(m.o.Tests)
	if err != nil {
		return "", err
	}
	var names, parts []string
	for _, part := range []string{"drivers/net", "net/lib"} {
		err := filepath.WalkDir(filepath.Join(root, part), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && path == filepath.Join(root, part) {
				return nil
			}
			if err != nil || !e.Type().IsRegular() || !slices.Contains(scripts, filepath.Ext(path)) {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			names, parts = append(names, rel), append(parts, rel, string(b))
			return err
		})
		if err != nil {
			return "", err
		}
	}
	if len(names) == 0 {
		return "", &assets.Missing{What: "--tests " + m.o.Tests, Err: errors.New("no .py and no .sh file in it"),
			Fix: "tests that have to be built are built with --source"}
	}
	m.im.Source += fmt.Sprintf(", %d files of %s", len(names), m.o.Tests)
	return m.image(ctx, "changed", parts, func(work string) ([]string, error) {
		to := filepath.Join(work, "files")
		for i, name := range names {
			file := filepath.Join(to, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return nil, err
			}
			if err := os.WriteFile(file, []byte(parts[2*i+1]), 0o755); err != nil {
				return nil, err
			}
		}
		return assets.Contents(to)
	}, "")
}
