package show

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Repaint writes successive versions of a text: on a terminal over the previous one, and cut to the terminal's size,
// elsewhere below it.
type Repaint struct {
	w     io.Writer
	size  func() (width, height int) // nil: w is no terminal with control codes (IsTerminal)
	lines int                        // lines of the previous version on the terminal
}

func NewRepaint(w io.Writer) *Repaint {
	r := &Repaint{w: w}
	if f, ok := w.(*os.File); ok && IsTerminal(w) {
		r.size = func() (int, int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil || width < 1 || height < 2 {
				return 80, 24
			}
			return width, height
		}
	}
	return r
}

func (r *Repaint) Paint(f func(io.Writer) error) error {
	var b strings.Builder
	if err := Text(&b, f); err != nil {
		return err
	}
	if r.size == nil {
		_, err := io.WriteString(r.w, b.String()+"\n")
		return err
	}
	width, height := r.size()
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if cut := len(lines) - (height - 1); cut > 0 {
		lines = append(lines[:height-2:height-2], fmt.Sprintf("(%d more lines: --once shows all)", cut+1))
	}
	b.Reset()
	if r.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", r.lines)
	}
	for _, l := range lines {
		if len(l) > width {
			l = l[:width]
		}
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	r.lines = len(lines)
	_, err := io.WriteString(r.w, b.String())
	return err
}
