package qemu

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/machine/assets"
)

func TestTooLittleMemoryIsSaid(t *testing.T) {
	var m *assets.Missing
	err := MemoryError("guest0", fmt.Errorf("x: %w", &fs.PathError{Op: "write", Path: "vnic-ram", Err: unix.EFBIG}))
	if !errors.As(err, &m) || !errors.Is(err, ErrNoMemory) ||
		!strings.HasPrefix(err.Error(), "guest0: not enough memory: file too large: free some") {
		t.Errorf("got %v", err)
	}
	for _, err := range []error{nil, errors.New("other")} {
		if got := MemoryError("x", err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}
