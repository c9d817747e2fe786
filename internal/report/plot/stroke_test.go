package plot

import (
	"bytes"
	"image"
	"image/color"
	"math"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestDashesGoRoundCorners(t *testing.T) {
	for name, c := range map[string]struct {
		line   []point
		dashes []float64
		want   string // along the line: # is ink, . is none
	}{
		"no dashes":           {[]point{{0, 5}, {9, 5}}, nil, "#########"},
		"a corner in a dash":  {[]point{{0, 5}, {4, 5}, {4, 9}}, []float64{3, 1}, "###.###."},
		"a gap up to corners": {[]point{{0, 5}, {3, 5}, {3, 8}}, []float64{2, 1}, "##.##."},
		"two lengths":         {[]point{{0, 5}, {10, 5}}, []float64{4, 1, 2, 1}, "####.##.##"},
		"a point twice":       {[]point{{0, 5}, {0, 5}, {6, 5}}, []float64{2, 2}, "##..##"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRaster(100, 100, 10, nil)
			r.stroke(stroke{color: ink, width: 0.4, dashes: c.dashes}, c.line)
			got := ""
			for k := 1; k < len(c.line); k++ {
				a, b := c.line[k-1], c.line[k]
				for i := 0.5; i < math.Hypot(b.x-a.x, b.y-a.y); i++ {
					part := i / math.Hypot(b.x-a.x, b.y-a.y)
					x, y := a.x+(b.x-a.x)*part, a.y+(b.y-a.y)*part
					got += map[bool]string{true: "#", false: "."}[r.pixel(int(10*x), int(10*y)).R < 0x80]
				}
			}
			testkit.Equal(t, "dashes", got, c.want)
		})
	}
}

func (r *raster) pixel(x, y int) color.RGBA { return r.pixels.Image().(*image.RGBA).RGBAAt(x, y) }

// To a pixel, a line has ink up to half of its width beside its parts and around its corner, and none beyond.
func TestLinesAreAsWideAtCorners(t *testing.T) {
	const width, size = 20, 200
	black := color.NRGBA{A: 0xff}
	for degrees := -180; degrees <= 180; degrees += 15 {
		sin, cos := math.Sincos(float64(degrees) * math.Pi / 180)
		line := []point{{20, 100}, {100, 100}, {100, 100}, {100 + 70*cos, 100 + 70*sin}}
		r := newRaster(size, size, 1, nil)
		r.stroke(stroke{color: black, width: width}, line)
		for y := range size {
			for x := range size {
				p := point{float64(x) + 0.5, float64(y) + 0.5}
				away, within := math.Inf(1), false
				for k := 1; k < len(line); k++ {
					d, beside := distance(p, line[k-1], line[k])
					away, within = min(away, d), within || beside && d < width/2-1
				}
				within = within || math.Hypot(p.x-100, p.y-100) < width/2-1
				dark := r.pixel(x, y).R
				if within && dark > 2 || away > width/2+1 && dark != 0xff {
					t.Fatalf("%d degrees: (%d,%d), %.1f away, is %d", degrees, x, y, away, dark)
				}
			}
		}
	}
}

// distance returns the distance of p from the part of a line from a to b, and whether p is beside the part, at least 1
// away from its ends.
func distance(p, a, b point) (d float64, beside bool) {
	length := math.Hypot(b.x-a.x, b.y-a.y)
	if length == 0 {
		return math.Hypot(p.x-a.x, p.y-a.y), false
	}
	along := ((p.x-a.x)*(b.x-a.x) + (p.y-a.y)*(b.y-a.y)) / length
	beside = along > 1 && along < length-1
	along = min(max(along, 0), length)
	return math.Hypot(p.x-a.x-(b.x-a.x)*along/length, p.y-a.y-(b.y-a.y)*along/length), beside
}

// The text of a PNG has the measured width, and is where its style says, to 2 points.
func TestTextIsWhereItsPointIs(t *testing.T) {
	f := testkit.Must(newFonts())(t)
	for _, up := range []bool{false, true} {
		for _, x := range []float64{0, -0.5, -1} {
			s := style{size: 20, x: x, up: up, color: ink}
			const words = "HAVEL"
			wide := f.width(s, words)
			r := newRaster(400, 400, 2, f)
			r.text(s, point{100, 100}, words)
			low, high := point{400, 400}, point{}
			for i := range 400 * 400 {
				if px, py := i%400, i/400; r.pixel(px, py).R < 0x80 {
					low = point{min(low.x, float64(px)/2), min(low.y, float64(py)/2)}
					high = point{max(high.x, float64(px+1)/2), max(high.y, float64(py+1)/2)}
				}
			}
			want := [4]float64{100 + x*wide, 100 - 0.69*20, 100 + (x+1)*wide, 100} // capitals are 0.69 em high
			if up {
				want = [4]float64{100 - 0.69*20, 100 - (x+1)*wide, 100, 100 - x*wide}
			}
			for i, v := range []float64{low.x, low.y, high.x, high.y} {
				if math.Abs(v-want[i]) > 2 {
					t.Errorf("up %v, x %v: from %v to %v, not %v", up, x, low, high, want)
				}
			}
		}
	}
}

func TestShapesOfSVG(t *testing.T) {
	s := newSVG(10, 10)
	s.fill(color.NRGBA{0xff, 0x00, 0x0a, 0x80}, []point{{-0.001, 0}, {1.005, 0}, {1, 1.0 / 3}})
	s.stroke(stroke{color.NRGBA{1, 2, 3, 0xff}, 1.5, []float64{5, 2}}, []point{{0, 0}, {1e6, 1}})
	var b bytes.Buffer
	testkit.OK(t, s.encode(&b))
	for _, want := range []string{`<path d="M0,0L1,0L1,0.33Z" style="fill:#ff000a;fill-opacity:0.5"/>`,
		`<path d="M0,0L1000000,1" style="fill:none;stroke:#010203;stroke-width:1.5;stroke-dasharray:5,2"/>`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is not in %s", want, b.String())
		}
	}
}
