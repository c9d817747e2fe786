package guestimages

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The guest program is built only if the module that the go tool has downloaded has the checksum of goModule.
func TestProgramOfAModule(t *testing.T) {
	cache, tools := t.TempDir(), t.TempDir()
	t.Setenv("PATH", tools)
	m := goModule{"example.com/m", "v1.0.0", "h1:right"}
	goTool := func(sum string) {
		put(t, filepath.Join(tools, "go"), []byte(`#!/bin/sh
case $1 in
mod) echo '{"Dir": "/", "Sum": "`+sum+`"}' ;;
build) while [ "$1" != -o ]; do shift; done; printf '\177ELF of %s' "$PWD" > "$2" ;;
esac
`))
	}
	fails := func(why string) {
		t.Helper()
		if _, err := m.program(t.Context(), cache); !errors.Is(err, ErrNoProgram) || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, not %s", err, why)
		}
		if left, _ := os.ReadDir(filepath.Join(cache, "programs")); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	}
	fails("executable file not found")
	goTool("h1:wrong")
	fails("is not the one that this vnic was built from: h1:wrong, not h1:right")
	put(t, filepath.Join(tools, "go"), []byte("#!/bin/sh\necho no network >&2\nexit 1\n"))
	fails("no network")
	goTool("h1:right")
	for range 2 {
		p, err := m.program(t.Context(), cache)
		if err != nil || string(p.content) != "\x7fELF of /" {
			t.Fatalf("%q, %v", p.content, err)
		}
		// the second iteration finds the program in the cache
		if err := os.Remove(filepath.Join(tools, "go")); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(cache, "programs")); len(left) != 1 {
		t.Errorf("left %v", left)
	}
}
