package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// sample returns a picture with everything that a picture can have, and with texts that must be escaped in XML.
func sample() *Picture {
	p := &Picture{Title: "<lab> & \"more\"\x00\x1b[31m", Subtitle: "subtitle", Footnote: "footnote"}
	for _, mode := range []string{"devmem", "copy"} {
		panel := Panel{Title: mode, Unit: "MB/s", Limit: &Limit{150, "line rate"}, Marks: []Mark{{0.1, "link down"},
			{0.11, "link up"}, {0.99, "near the end"}}}
		for i := range 10 {
			s := Series{Name: fmt.Sprintf("a.nic%d → b.nic%d", i, i), Mean: float64(i) * 11.1}
			for k := range 20 {
				v := Interval{From: float64(k) / 20, To: float64(k+1) / 20, Value: float64(100 + i*k%7)}
				if k == 10 {
					v.From += 0.01
				}
				if i == k {
					v.Lost = 1234
				}
				s.Intervals = append(s.Intervals, v)
			}
			panel.Series = append(panel.Series, s)
		}
		p.Panels = append(p.Panels, panel)
	}
	percent := func(v float64) string { return fmt.Sprintf("%.0f %%", v*100) }
	p.Bars = &Bars{Title: "Links", Names: []string{"a.nic0 out", strings.Repeat("long", 100)},
		Groups: []string{"devmem", "copy"}, Columns: []Column{
			{Title: "model", Values: [][]float64{{1, 0}, {0.5, -1}}, Format: percent, Full: 1},
			{Title: "measured", Values: [][]float64{{0, 0}, {-1, -1}}, Format: percent}}}
	return p
}

// size returns the width and the height of a picture's PNG in pixels.
func size(t *testing.T, p *Picture) (w, h int) {
	return pixels(width), pixels(p.layout(testkit.Must(newFonts())(t)).height)
}

func words(t *testing.T, svg []byte) (list []string) {
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		testkit.OK(t, err)
		if text, ok := token.(xml.CharData); ok {
			list = append(list, string(text))
		}
	}
}

func TestSVGIsXMLWithAllNames(t *testing.T) {
	p := sample()
	var b bytes.Buffer
	testkit.OK(t, p.Write(&b, "svg"))
	all := "\n" + strings.Join(words(t, b.Bytes()), "\n") + "\n"
	want := []string{"<lab> & \"more\"[31m", "subtitle", "footnote", "devmem", "copy", "line rate", "link down",
		"link up", "near the end", "mean MB/s", "1,234", "11.1", "99.9", "Links", "a.nic0 out", "model",
		"measured", "100 %", "50 %"}
	for _, s := range p.Panels[0].Series {
		want = append(want, s.Name)
	}
	for _, w := range want {
		if !strings.Contains(all, "\n"+w+"\n") {
			t.Errorf("%q is not there", w)
		}
	}
	if strings.Contains(all, strings.Repeat("long", 100)) || !strings.Contains(all, "…") {
		t.Error("a long name is as it was")
	}
	for _, font := range []string{"'" + family + "',Arial,Helvetica,sans-serif", "text-anchor:end", "text-anchor:middle"} {
		if !strings.Contains(b.String(), font) {
			t.Errorf("%s is not there", font)
		}
	}
	if strings.Contains(b.String(), "italic") || strings.Contains(b.String(), "oblique") {
		t.Error("anchors are styles")
	}
}

func TestPNGIsAsLargeAsSaid(t *testing.T) {
	for name, p := range map[string]*Picture{"all": sample(), "nothing": {},
		"a panel without a line": {Panels: []Panel{{}}},
		"zeros":                  {Panels: []Panel{{Series: []Series{{Intervals: []Interval{{}}}}}}},
		"no bars":                {Bars: &Bars{Groups: []string{"a"}, Columns: []Column{{Values: [][]float64{{}}}}}},
		"what is no number": {Panels: []Panel{{Series: []Series{{Mean: math.Inf(1), Intervals: []Interval{{To: 1,
			Value: math.Inf(1)}}}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			testkit.OK(t, p.Write(&b, "png"))
			w, h := size(t, p)
			picture := testkit.Must(png.Decode(&b))(t)
			testkit.Equal(t, "size", picture.Bounds().Size().String(), fmt.Sprintf("(%d,%d)", w, h))
			testkit.Equal(t, "width", w, 1800)
			b.Reset()
			testkit.OK(t, p.Write(&b, "svg"))
			words(t, b.Bytes())
		})
	}
}

func TestLinesHaveTheirColours(t *testing.T) {
	var b bytes.Buffer
	testkit.OK(t, sample().Write(&b, "png"))
	picture := testkit.Must(png.Decode(&b))(t)
	seen := make(map[[3]uint32]bool)
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			r, g, b, _ := picture.At(x, y).RGBA()
			seen[[3]uint32{r >> 8, g >> 8, b >> 8}] = true
		}
	}
	for _, c := range append(lines, fills...) {
		if !seen[[3]uint32{uint32(c.R), uint32(c.G), uint32(c.B)}] {
			t.Errorf("%v is not there", c)
		}
	}
}

func TestFormatIsByTheFilesName(t *testing.T) {
	for file, want := range map[string]string{"x.svg": "svg", "/a.b/x.PNG": "png", ".svg": "svg"} {
		testkit.Equal(t, file, testkit.Must(Format(file))(t), want)
	}
	for _, file := range []string{"x.txt", "x", "svg", "x.svg/y", "x.svgz"} {
		testkit.ErrorSays(t, testkit.Err(Format(file)), file+": .svg or .png")
	}
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

func TestWriterThatFails(t *testing.T) {
	full := errors.New("full")
	for _, format := range []string{"svg", "png"} {
		testkit.ErrorIs(t, sample().Write(failing{full}, format), full)
	}
}

func TestAxisHasRoundNumbers(t *testing.T) {
	for high, want := range map[float64]string{0: "0.0 0.2 0.4 0.6 0.8 1.0", 1: "0.0 0.2 0.4 0.6 0.8 1.0",
		208: "0 50 100 150 200 250", 0.17: "0.00 0.05 0.10 0.15 0.20", 1656: "0 500 1,000 1,500 2,000", 5: "0 1 2 3 4 5",
		math.Inf(1): "0.0 0.2 0.4 0.6 0.8 1.0", math.NaN(): "0.0 0.2 0.4 0.6 0.8 1.0"} {
		a := newAxis(high, 5)
		var got []string
		for _, v := range a.ticks() {
			got = append(got, a.label(v))
		}
		testkit.Equal(t, fmt.Sprint(high), strings.Join(got, " "), want)
	}
}

func TestLineHasGaps(t *testing.T) {
	s := Series{Intervals: []Interval{{From: 0, To: 2, Value: 5}, {From: 2, To: 4, Value: 7}, {From: 6, To: 8, Value: 1}}}
	testkit.Equal(t, "points", fmt.Sprint(s.points()), "[[{0 5} {1 5} {3 7} {4 7}] [{6 1} {7 1} {8 1}]]")
}

func TestNumbersHaveThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.01234: "0.0123", 1.5: "1.50", 28.94: "28.9", 285.4: "285",
		1593.2: "1593"} {
		testkit.Equal(t, fmt.Sprint(v), digits(v), want)
	}
}
