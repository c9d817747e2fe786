package plot

import (
	"fmt"
	"image/color"
	"strings"
	"unicode"

	"codeberg.org/go-fonts/liberation/liberationsansbold"
	"codeberg.org/go-fonts/liberation/liberationsansregular"
	xfont "golang.org/x/image/font"
	"golang.org/x/image/font/opentype"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// family is what the embedded fonts are called.
const family = "Liberation Sans"

// An SVG's viewer that has another font, which is wider, is to put texts where they belong all the same. vgsvg does not
// know SVG's text-anchor. So a text's anchor is the style of its font, of which there is one; inSVG writes it.
const (
	atStart  = xfont.StyleNormal
	atEnd    = xfont.StyleItalic
	atMiddle = xfont.StyleOblique
)

// inSVG replaces what vgsvg writes of fonts.
var inSVG = strings.NewReplacer(
	"font-family:"+family+";", "font-family:'"+family+"',Arial,Helvetica,sans-serif;",
	"font-style:italic;", "text-anchor:end;",
	"font-style:oblique;", "text-anchor:middle;")

// fonts are a regular and a bold one.
type fonts struct{ text.Plain }

func newFonts() (*fonts, error) {
	var all font.Collection
	for weight, ttf := range map[xfont.Weight][]byte{xfont.WeightNormal: liberationsansregular.TTF,
		xfont.WeightBold: liberationsansbold.TTF} {
		face, err := opentype.Parse(ttf)
		if err != nil {
			return nil, fmt.Errorf("embedded font: %w", err)
		}
		for _, s := range []xfont.Style{atStart, atEnd, atMiddle} {
			all = append(all, font.Face{Font: font.Font{Typeface: family, Weight: weight, Style: s}, Face: face})
		}
	}
	return &fonts{text.Plain{Fonts: font.NewCache(all)}}, nil
}

// style is how a text looks, and where from its point it is.
type style struct {
	size  vg.Length
	bold  bool
	color color.Color
	x     float64 // 0: right of the point; -1: left of it; -0.5: in the middle
	up    bool    // it is read upwards
}

func (f *fonts) of(s style) draw.TextStyle {
	out := draw.TextStyle{Color: s.color, Handler: f.Plain, Font: font.Font{Typeface: family, Size: s.size}}
	if out.Color == nil {
		out.Color = ink
	}
	if s.bold {
		out.Font.Weight = xfont.WeightBold
	}
	switch s.x {
	case -1:
		out.Font.Style = atEnd
	case -0.5:
		out.Font.Style = atMiddle
	}
	return out
}

func (f *fonts) width(s style, t string) vg.Length { return f.of(s).Width(clean(t)) }

// fit shortens a text until it is no wider than most.
func (f *fonts) fit(s style, t string, most vg.Length) string {
	if f.width(s, t) <= most {
		return t
	}
	r := []rune(t)
	for len(r) > 1 && f.width(s, string(r)+"…") > most {
		r = r[:len(r)-1]
	}
	return string(r) + "…"
}

// clean leaves out what XML cannot have, and lines.
func clean(t string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, t)
}
