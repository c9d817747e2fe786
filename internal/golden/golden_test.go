package golden

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestCompare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "golden")
	files := map[string]string{"a": "# one\n1\n", "b": "2\n"}
	testkit.OK(t, write(dir, files))
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "other.bin"), nil, 0o644))
	for _, tc := range []struct {
		name string
		got  map[string]string
		want string // part of the only error's text; "": no error
	}{
		{"same", files, ""},
		{"changed", map[string]string{"a": "# one\n3\n", "b": "2\n"},
			"line 2, under # one\n  frozen \"1\\n\"\n  now    \"3\\n\""},
		{"longer", map[string]string{"a": "# one\n1\n2\n", "b": "2\n"}, "line 3"},
		{"shorter", map[string]string{"a": "# one\n", "b": "2\n"}, "line 2"},
		{"no last newline", map[string]string{"a": "# one\n1", "b": "2\n"}, "line 2"},
		{"new", map[string]string{"a": "# one\n1\n", "b": "2\n", "c": ""}, "there is no such file"},
		{"gone", map[string]string{"a": "# one\n1\n"}, "no test makes this file"},
	} {
		errs := compare(dir, tc.got)
		none := tc.want == "" && len(errs) == 0
		if !none && (tc.want == "" || len(errs) != 1 || !strings.Contains(errs[0].Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, errs, tc.want)
		}
	}
	if errs := compare(filepath.Join(dir, "none"), files); len(errs) != 2 {
		t.Errorf("no directory: %v", errs)
	}
	testkit.OK(t, write(dir, map[string]string{"b": "2\n"}))
	if errs := compare(dir, map[string]string{"b": "2\n"}); len(errs) != 0 {
		t.Errorf("written anew: %v", errs)
	}
	testkit.OK(t, os.Mkdir(filepath.Join(dir, "c.txt"), 0o755))
	if errs := compare(dir, nil); len(errs) != 1 || write(dir, nil) == nil {
		t.Errorf("no file: %v", errs)
	}
	testkit.ErrorIs(t, write(filepath.Join(dir, "other.bin/below"), nil), unix.ENOTDIR, "below a file")
	testkit.ErrorIs(t, write(filepath.Join(t.TempDir(), "new"), map[string]string{"no/such": ""}), fs.ErrNotExist)
}
