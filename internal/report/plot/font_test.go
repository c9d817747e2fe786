package plot

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"codeberg.org/go-fonts/liberation/liberationsansbold"
	"codeberg.org/go-fonts/liberation/liberationsansregular"
	"golang.org/x/image/font"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"

	"vnic.dev/vnic/internal/testkit"
)

var update = flag.Bool("update", false, "write liberation.json")

// ranges has the first and the last characters of the ranges that liberation.json has, as far as the fonts do.
var ranges = [][2]rune{
	{' ', '~'}, {0xa0, 0x17f}, {0x384, 0x3ce}, {0x400, 0x45f}, {0x2010, 0x2044}, {'€', '€'}, {'™', '™'}, {'←', '↕'},
	{'∂', '∂'}, {'∆', '∏'}, {'∑', '−'}, {'√', '∞'}, {'∩', '∫'}, {'≈', '≈'}, {'≠', '≥'},
}

func TestFontsAreThoseOfTheirFiles(t *testing.T) {
	f := fonts{Regular: readFont(t, liberationsansregular.TTF), Bold: readFont(t, liberationsansbold.TTF)}
	b := testkit.Must(json.Marshal(f))(t)
	b = bytes.ReplaceAll(b, []byte(`]]},`), []byte("]]},\n"))
	b = append(b, '\n')
	if *update {
		testkit.OK(t, os.WriteFile("liberation.json", b, 0o644))
	}
	if !bytes.Equal(b, liberation) && !*update {
		t.Fatal("liberation.json differs from the fonts: go test ./internal/report/plot -update")
	}
	if n := len(f.Regular.Glyphs); n < 500 || f.Regular.Kern["AV"] >= 0 ||
		f.Bold.Glyphs["m"].Advance <= f.Bold.Glyphs["i"].Advance {
		t.Errorf("%d glyphs, AV %d", n, f.Regular.Kern["AV"])
	}
}

var ops = map[sfnt.SegmentOp]op{
	sfnt.SegmentOpMoveTo: moveTo, sfnt.SegmentOpLineTo: lineTo, sfnt.SegmentOpQuadTo: quadTo,
}

func readFont(t *testing.T, ttf []byte) *face {
	t.Helper()
	in := testkit.Must(sfnt.Parse(ttf))(t)
	em := fixed.Int26_6(in.UnitsPerEm())
	var b sfnt.Buffer
	out := &face{Em: int(em), Glyphs: map[string]*glyph{}, Kern: map[string]int{}}
	indices := map[string]sfnt.GlyphIndex{"": 0}
	for _, r := range ranges {
		for c := r[0]; c <= r[1]; c++ {
			if index := testkit.Must(in.GlyphIndex(&b, c))(t); index != 0 {
				indices[string(c)] = index
			}
		}
	}
	for c, index := range indices {
		g := &glyph{Advance: int(testkit.Must(in.GlyphAdvance(&b, index, em, font.HintingNone))(t)), Outline: [][]int{}}
		for _, s := range testkit.Must(in.LoadGlyph(&b, index, em, nil))(t) {
			o, ok := ops[s.Op]
			if !ok {
				t.Fatalf("%q has an operation %d", c, s.Op)
			}
			part := []int{int(o)}
			for _, p := range s.Args[:1+o/quadTo] {
				part = append(part, int(p.X), int(p.Y))
			}
			g.Outline = append(g.Outline, part)
		}
		out.Glyphs[c] = g
	}
	for first, i := range indices {
		for second, k := range indices {
			if first == "" || second == "" {
				continue
			}
			if by, err := in.Kern(&b, i, k, em, font.HintingNone); err == nil && by != 0 {
				out.Kern[first+second] = int(by)
			}
		}
	}
	return out
}
