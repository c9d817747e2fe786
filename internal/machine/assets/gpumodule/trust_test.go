package gpumodule

import (
	"os"
	"path/filepath"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/trusted"
)

// Invariant: vnicgpu.ko: A module that a user other than this one and root could have put into the
// cache, or changed there, is refused.
func TestModuleOfAnotherUserIsRefused(t *testing.T) {
	for name, change := range map[string]func(module string) error{
		"a module that others write":       func(m string) error { return os.Chmod(m, 0o666) },
		"a directory that others write":    func(m string) error { return os.Chmod(filepath.Dir(m), 0o777) },
		"another's module, if we are root": func(m string) error { return os.Lchown(m, 65534, -1) },
		"another's link, if we are root": func(m string) error {
			if err := os.Rename(m, m+"-mine"); err != nil {
				return err
			}
			if err := os.Symlink(m+"-mine", m); err != nil {
				return err
			}
			return os.Lchown(m, 65534, -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := user(t, "main")
			// The cache moves, because a process checks a path only once.
			module := testkit.Must(Make(t.Context(), o))(t)
			moved := filepath.Join(t.TempDir(), "cache")
			testkit.OK(t, os.Rename(o.CacheDir, moved))
			o.CacheDir = moved
			module = filepath.Join(moved, filepath.Base(filepath.Dir(module)), filepath.Base(module))
			if err := change(module); os.Geteuid() != 0 && os.IsPermission(err) {
				t.Skip("not root")
			} else {
				testkit.OK(t, err)
			}
			_, err := Make(t.Context(), o)
			isMissing(t, err, trusted.Err)
		})
	}
}
