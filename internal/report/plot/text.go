package plot

import (
	"image/color"
	"strings"
	"unicode"
)

// longest bounds the characters of a text: more than the picture has room for.
const longest = 600

type style struct {
	size  float64
	bold  bool
	color color.NRGBA // zero: ink
	x     float64     // 0: right of the point; -1: left of it; -0.5: in the middle
	up    bool        // the text runs upwards
}

func (f *fonts) width(s style, t string) float64 {
	_, width := f.glyphs(s, clean(t))
	return width
}

// fit cleans a text, and shortens it until it is no wider than most, with "…" at its end, but keeps at least one
// character.
func (f *fonts) fit(s style, t string, most float64) string {
	const dots = "…"
	room := most - f.width(s, dots)
	t = clean(t)
	glyphs, width := f.glyphs(s, t)
	if width <= most {
		return t
	}
	n := len(glyphs) - 1
	for n > 1 && glyphs[n].x > room {
		n--
	}
	return string([]rune(t)[:max(n, 1)]) + dots
}

// clean leaves out U+FFFD and characters that are not printable, and keeps at most longest characters.
func clean(t string) string {
	var b strings.Builder
	n := 0
	for _, r := range t {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			continue
		}
		if n++; n > longest {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}
