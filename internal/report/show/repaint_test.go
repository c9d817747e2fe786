package show

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func numbered(n int) func(io.Writer) error {
	return func(w io.Writer) error {
		for i := range n {
			if _, err := fmt.Fprintf(w, "%d %s\n", i, strings.Repeat("x", 100)); err != nil {
				return err
			}
		}
		return nil
	}
}

// A version of the text is cut to the screen's size, so that the next one covers it.
func TestViewIsPaintedOverTheLast(t *testing.T) {
	var b strings.Builder
	r := &Repaint{w: &b, size: func() (int, int) { return 10, 5 }}
	for _, n := range []int{2, 7, 1} {
		testkit.OK(t, r.Paint(numbered(n)))
	}
	const row = "xxxxxxxx\x1b[K\n"
	const want = "0 " + row + "1 " + row + "\x1b[J" +
		"\x1b[2A\r0 " + row + "1 " + row + "2 " + row + "(4 more li\x1b[K\n\x1b[J" +
		"\x1b[4A\r0 " + row + "\x1b[J"
	testkit.Equal(t, "it writes", b.String(), want)
}

func TestViewInAFileIsPlain(t *testing.T) {
	var b strings.Builder
	r := NewRepaint(&b)
	for range 2 {
		testkit.OK(t, r.Paint(numbered(1)))
	}
	line := "0 " + strings.Repeat("x", 100) + "\n\n"
	testkit.Equal(t, "it writes", b.String(), line+line)
}
