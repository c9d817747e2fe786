package plot

import (
	"fmt"

	"codeberg.org/go-fonts/liberation/liberationsansbold"
	"codeberg.org/go-fonts/liberation/liberationsansregular"
	"golang.org/x/image/font"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

// family is what the embedded fonts are called.
const family = "Liberation Sans"

// fonts are a regular and a bold one. They serve one picture at a time.
type fonts struct {
	regular, bold *sfnt.Font
	buffer        sfnt.Buffer
}

func newFonts() (*fonts, error) {
	f := new(fonts)
	for _, of := range []struct {
		font **sfnt.Font
		ttf  []byte
	}{{&f.regular, liberationsansregular.TTF}, {&f.bold, liberationsansbold.TTF}} {
		var err error
		if *of.font, err = sfnt.Parse(of.ttf); err != nil {
			return nil, fmt.Errorf("embedded font: %w", err)
		}
	}
	return f, nil
}

// of is a style's font, in which one em is as many units as sfnt is to take for pixels, and what a unit is in points.
func (f *fonts) of(s style) (face *sfnt.Font, em fixed.Int26_6, unit float64) {
	face = f.regular
	if s.bold {
		face = f.bold
	}
	em = fixed.Int26_6(face.UnitsPerEm())
	return face, em, s.size / float64(em)
}

// glyph is the shape of a character, and how many points right of the text's start it begins.
type glyph struct {
	index sfnt.GlyphIndex
	x     float64
}

// glyphs has one for each character of a text, and the text's width. What the font does not have is shown by its first
// glyph, a box. The errors that sfnt has for a broken font are not looked at: the fonts are embedded, and a broken
// glyph would be that box, too.
func (f *fonts) glyphs(s style, t string) (list []glyph, width float64) {
	face, em, unit := f.of(s)
	for i, r := range []rune(t) {
		index, _ := face.GlyphIndex(&f.buffer, r)
		if i > 0 {
			kern, _ := face.Kern(&f.buffer, list[i-1].index, index, em, font.HintingNone)
			width += float64(kern) * unit
		}
		list = append(list, glyph{index, width})
		advance, _ := face.GlyphAdvance(&f.buffer, index, em, font.HintingNone)
		width += float64(advance) * unit
	}
	return list, width
}

// outline is that of a glyph, in points from where it begins on the baseline.
func (f *fonts) outline(s style, index sfnt.GlyphIndex) []segment {
	face, em, unit := f.of(s)
	parts, _ := face.LoadGlyph(&f.buffer, index, em, nil)
	list := make([]segment, len(parts))
	for i, part := range parts {
		list[i].op = part.Op
		for k, p := range part.Args {
			list[i].args[k] = point{float64(p.X) * unit, float64(p.Y) * unit}
		}
	}
	return list
}
