package kernel

import (
	"bytes"
	"os"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// docs/dmabuf.c is documentation: it has at most 40 lines.
func TestSnippetIsShort(t *testing.T) {
	b := testkit.Must(os.ReadFile("docs/dmabuf.c"))(t)
	if n := bytes.Count(b, []byte("\n")); n > 40 {
		t.Errorf("docs/dmabuf.c has %d lines", n)
	}
}
