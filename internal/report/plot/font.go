package plot

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

const family = "Liberation Sans"

// liberation has the shapes of some of Liberation Sans' characters; font_test.go makes the file from the fonts' own
// files, with -update.
//
// Digitized data copyright (c) 2010 Google Corporation, with Reserved Font Arimo, Tinos and Cousine. Copyright (c) 2012
// Red Hat, Inc., with Reserved Font Name Liberation. SIL Open Font License 1.1: OFL.txt.
//
//go:embed liberation.json
var liberation []byte

type fonts struct {
	Regular *face `json:"regular"`
	Bold    *face `json:"bold"`
}

// face is one font. Lengths are in its own units: at a size of S points, one unit is S/Em points. y grows
// downwards.
type face struct {
	Em     int               `json:"em"`
	Glyphs map[string]*glyph `json:"glyphs"` // by characters; "" is a box, for others
	Kern   map[string]int    `json:"kern"`   // by pairs of characters
}

type glyph struct {
	Advance int     `json:"advance"` // from the glyph's start to the next one's, without kerning
	Outline [][]int `json:"outline"` // segments: an op, and x and y of each of its points
}

type op int

const (
	moveTo op = iota
	lineTo
	quadTo // a quadratic Bézier curve: its control point and its end
)

// newFonts reads the embedded fonts once. Callers do not change them.
var newFonts = sync.OnceValues(func() (*fonts, error) {
	f := new(fonts)
	if err := json.Unmarshal(liberation, f); err != nil {
		return nil, fmt.Errorf("embedded font: %w", err)
	}
	return f, nil
})

// faceOf returns the font of a style, and its unit in points.
func (f *fonts) faceOf(s style) (chosen *face, unit float64) {
	chosen = f.Regular
	if s.bold {
		chosen = f.Bold
	}
	return chosen, s.size / float64(chosen.Em)
}

// placed is a glyph in a text, at x points from its start.
type placed struct {
	*glyph
	x float64
}

// glyphs returns the glyphs of a text, and its width in points.
func (f *fonts) glyphs(s style, t string) (list []placed, width float64) {
	chosen, unit := f.faceOf(s)
	before := ""
	for _, r := range t {
		c := string(r)
		g := chosen.Glyphs[c]
		if g == nil {
			c, g = "", chosen.Glyphs[""]
		}
		if before != "" && c != "" {
			width += float64(chosen.Kern[before+c]) * unit
		}
		list = append(list, placed{g, width})
		width += float64(g.Advance) * unit
		before = c
	}
	return list, width
}
