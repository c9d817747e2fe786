package kernel

import (
	"bytes"
	"os"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// The file stays short, because the documents show all of it.
func TestSnippetIsShort(t *testing.T) {
	b := testkit.Must(os.ReadFile("docs/dmabuf.c"))(t)
	if n := bytes.Count(b, []byte("\n")); n > 40 {
		t.Errorf("docs/dmabuf.c has %d lines", n)
	}
}
