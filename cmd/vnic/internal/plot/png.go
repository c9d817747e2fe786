package plot

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/vector"
)

// raster is a canvas of pixels, for PNG.
type raster struct {
	pixels *image.RGBA
	scale  float64 // pixels in a point
	fonts  *fonts
	z      vector.Rasterizer
	shape  []segment // scratch
}

// segment is a part of an outline, in pixels. Contours are closed.
type segment struct {
	op   op
	args [2]point // as many as op has
}

// op is what a segment does.
type op int

const (
	moveTo op = iota // a contour begins
	lineTo
	quadTo // a quadratic Bézier curve, by its control point and its end
)

func newRaster(width, height int, scale float64, f *fonts) *raster {
	r := &raster{pixels: image.NewRGBA(image.Rect(0, 0, width, height)), scale: scale, fonts: f}
	draw.Draw(r.pixels, r.pixels.Bounds(), image.White, image.Point{}, draw.Src)
	return r
}

func (r *raster) fill(c color.NRGBA, corners []point) {
	r.shape = r.shape[:0]
	r.polygon(corners)
	r.draw(c)
}

func (r *raster) stroke(s stroke, points []point) {
	for _, dash := range dashed(points, s.dashes) {
		r.shape = r.shape[:0]
		for _, p := range outline(dash, s.width) {
			r.polygon(p)
		}
		r.draw(s.color)
	}
}

func (r *raster) text(s style, base point, t string) {
	r.shape = r.shape[:0]
	glyphs, width := r.fonts.glyphs(s, t)
	from := s.x * width
	for _, g := range glyphs {
		for _, part := range r.fonts.outline(s, g.glyph) {
			out := segment{op: part.op}
			for i, p := range part.args {
				x, y := from+g.x+p.x, p.y
				if s.up { // a quarter to the left
					x, y = y, -x
				}
				out.args[i] = r.place(point{base.x + x, base.y + y})
			}
			r.shape = append(r.shape, out)
		}
	}
	r.draw(s.color)
}

// place is where a point is, in pixels.
func (r *raster) place(p point) point { return point{p.x * r.scale, p.y * r.scale} }

// polygon adds one to the shape.
func (r *raster) polygon(corners []point) {
	op := moveTo
	for _, p := range corners {
		r.shape = append(r.shape, segment{op, [2]point{r.place(p)}})
		op = lineTo
	}
}

// draw fills the shape. Of the picture only the part around the shape is touched: the rasterizer's time is that of
// the area that it is given.
func (r *raster) draw(c color.NRGBA) {
	box := r.bounds().Intersect(r.pixels.Bounds())
	if box.Empty() {
		return
	}
	r.z.Reset(box.Dx(), box.Dy())
	for i, s := range r.shape {
		var a [2][2]float32
		for k, p := range s.args {
			a[k] = [2]float32{float32(p.x - float64(box.Min.X)), float32(p.y - float64(box.Min.Y))}
		}
		switch s.op {
		case moveTo:
			if i > 0 {
				r.z.ClosePath()
			}
			r.z.MoveTo(a[0][0], a[0][1])
		case lineTo:
			r.z.LineTo(a[0][0], a[0][1])
		case quadTo:
			r.z.QuadTo(a[0][0], a[0][1], a[1][0], a[1][1])
		}
	}
	r.z.ClosePath()
	r.z.Draw(r.pixels, box, image.NewUniform(c), image.Point{})
}

// bounds is the rectangle around the shape. A curve is within the polygon of its points.
func (r *raster) bounds() image.Rectangle {
	low, high := point{math.Inf(1), math.Inf(1)}, point{math.Inf(-1), math.Inf(-1)}
	for _, s := range r.shape {
		for _, p := range s.args[:points(s.op)] {
			low.x, low.y = min(low.x, p.x), min(low.y, p.y)
			high.x, high.y = max(high.x, p.x), max(high.y, p.y)
		}
	}
	if low.x > high.x {
		return image.Rectangle{}
	}
	return image.Rect(int(math.Floor(low.x)), int(math.Floor(low.y)), int(math.Ceil(high.x)), int(math.Ceil(high.y)))
}

// points is how many a segment has.
func points(o op) int {
	if o == quadTo {
		return 2
	}
	return 1
}

func (r *raster) encode(w io.Writer) error { return png.Encode(w, r.pixels) }
