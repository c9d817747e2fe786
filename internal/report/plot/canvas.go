package plot

import (
	"image/color"
	"io"
)

// point is a place on a canvas in points (1/72 inch), right of and below the upper left corner. Series.points uses it
// for a time and a value.
type point struct{ x, y float64 }

// canvas is a sheet to draw on, of one file format. A canvas changes no slice that it is given, and keeps none.
type canvas interface {
	fill(c color.NRGBA, corners []point)
	stroke(s stroke, points []point)
	// text writes a text whose baseline begins at a point, or ends or is centred there if the style says so.
	text(s style, base point, t string)
	encode(w io.Writer) error
}

// stroke is how a line looks. Its ends are cut off straight, and its corners are round.
type stroke struct {
	color  color.NRGBA
	width  float64
	dashes []float64 // lengths of a dash, the gap after it, and so on, repeated; empty: no gaps
}
