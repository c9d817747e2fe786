package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func named(name string) *Picture {
	return &Picture{Title: name, Subtitle: name, Footnote: name,
		Panels: []Panel{{Title: name, Unit: name, Limit: &Limit{1, name}, Marks: []Mark{{0, name}, {1, name}},
			Series: []Series{{Name: name, Intervals: []Interval{{To: 1, Value: 1, Lost: 1}}}}}},
		Bars: &Bars{Title: name, Names: []string{name}, Groups: []string{name}, Columns: []Column{
			{Title: name, Values: [][]float64{{1}}, Format: func(float64) string { return name }, Full: 1}}}}
}

// drawn draws a picture as pixels, and does not encode them, as this is slow under the race detector.
func drawn(t *testing.T, p *Picture) *raster {
	f := testkit.Must(newFonts())(t)
	l := p.layout(f)
	r := newRaster(pixels(width), pixels(l.height), scale, f)
	l.c = r
	l.draw()
	return r
}

func TestHostileNames(t *testing.T) {
	for name, text := range map[string]string{
		"markup":               `"/></text><script href='x'>&amp;]]><!--`,
		"no character of XML":  "\x00\x01\x1b[31m\u200b\u202e\ufffe\uffff\U0001fffe\xff\xed\xa0\x80",
		"lines":                "a\nb\r\nc\u2028d",
		"long":                 strings.Repeat("<", 1<<20),
		"long and of no width": "a" + strings.Repeat("\u0301", 1<<20),
		"not in the font":      strings.Repeat("漢字", 1<<10),
	} {
		t.Run(name, func(t *testing.T) {
			p := named(text)
			var b bytes.Buffer
			testkit.OK(t, p.Write(&b, "svg"))
			if n := b.Len(); n > 100<<10 {
				t.Errorf("an SVG of %d bytes", n)
			}
			elements(t, b.Bytes())
			for _, w := range words(t, b.Bytes()) {
				if n := len([]rune(w)); n > longest {
					t.Errorf("a text of %d characters", n)
				}
			}
			wide, high := size(t, named("a"))
			got := drawn(t, p).pixels.Image().Bounds().Size()
			testkit.Equal(t, "size", got.String(), fmt.Sprintf("(%d,%d)", wide, high))
		})
	}
}

// elements checks that an SVG has only the elements and attributes that svg.go writes.
func elements(t *testing.T, svg []byte) {
	attributes := map[string][]string{"svg": {"xmlns", "width", "height", "viewBox", "style"}, "path": {"d", "style"},
		"text": {"x", "y", "transform", "style"}}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		testkit.OK(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			if attributes[e.Name.Local] == nil {
				t.Errorf("an element %s", e.Name.Local)
			}
			for _, a := range e.Attr {
				if !slices.Contains(attributes[e.Name.Local], a.Name.Local) {
					t.Errorf("an attribute %s of %s", a.Name.Local, e.Name.Local)
				}
			}
		case xml.Comment, xml.Directive:
			t.Errorf("%T in the file", e)
		}
	}
}

func TestValuesWithoutAPlace(t *testing.T) {
	for _, v := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64, -math.MaxFloat64} {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			p := sample()
			s := &p.Panels[0].Series[0]
			s.Intervals[3].Value, s.Intervals[5].From, s.Mean = v, v, v
			p.Panels[0].Limit.At, p.Panels[0].Marks[0].At, p.Bars.Columns[0].Values[0][0] = v, v, v
			drawn(t, p)
			var b bytes.Buffer
			testkit.OK(t, p.Write(&b, "svg"))
			for _, line := range strings.Split(b.String(), "\n") {
				markup, _, _ := strings.Cut(line, ">")
				if strings.Contains(markup, "Inf") || strings.Contains(markup, "NaN") {
					t.Fatal(line)
				}
			}
		})
	}
}

func TestPictureIsTheSameEachTime(t *testing.T) {
	for _, format := range []string{"svg", "png"} {
		var first, second bytes.Buffer
		testkit.OK(t, named("a").Write(&first, format))
		testkit.OK(t, named("a").Write(&second, format))
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("two %ss of the same differ", format)
		}
	}
}
