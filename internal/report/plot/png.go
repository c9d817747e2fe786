package plot

import (
	"image/color"
	"io"
	"math"

	"git.sr.ht/~sbinet/gg"
)

type raster struct {
	pixels *gg.Context
	scale  float64 // pixels in a point
	fonts  *fonts
}

func newRaster(width, height int, scale float64, f *fonts) *raster {
	r := &raster{pixels: gg.NewContext(width, height), scale: scale, fonts: f}
	r.pixels.Scale(scale, scale)
	r.pixels.SetLineCapButt()
	r.pixels.SetColor(color.White)
	r.pixels.Clear()
	return r
}

func (r *raster) fill(c color.NRGBA, corners []point) {
	r.path(corners)
	r.pixels.SetColor(c)
	r.pixels.Fill()
}

func (r *raster) stroke(s stroke, points []point) {
	r.path(points)
	dashes := make([]float64, len(s.dashes))
	for i, d := range s.dashes {
		dashes[i] = d * r.scale
	}
	r.pixels.SetDash(dashes...)
	r.pixels.SetLineWidth(s.width * r.scale)
	r.pixels.SetColor(s.color)
	r.pixels.Stroke()
}

func (r *raster) path(points []point) {
	for _, p := range points {
		r.pixels.LineTo(p.x, p.y)
	}
}

func (r *raster) text(s style, base point, t string) {
	r.pixels.Push()
	r.pixels.Translate(base.x, base.y)
	if s.up {
		r.pixels.Rotate(-math.Pi / 2)
	}
	glyphs, width := r.fonts.glyphs(s, t)
	r.pixels.Translate(s.x*width, 0)
	_, unit := r.fonts.faceOf(s)
	for _, g := range glyphs {
		for _, part := range g.Outline {
			corner := func(k int) (x, y float64) { return g.x + float64(part[1+2*k])*unit, float64(part[2+2*k]) * unit }
			x, y := corner(0)
			switch op(part[0]) {
			case moveTo:
				r.pixels.MoveTo(x, y)
			case lineTo:
				r.pixels.LineTo(x, y)
			case quadTo:
				toX, toY := corner(1)
				r.pixels.QuadraticTo(x, y, toX, toY)
			}
		}
	}
	r.pixels.SetColor(s.color)
	r.pixels.Fill()
	r.pixels.Pop()
}

func (r *raster) encode(w io.Writer) error { return r.pixels.EncodePNG(w) }
