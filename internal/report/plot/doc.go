// Package plot draws a picture of a run, as SVG or PNG: panels of rates over time with the same axes, and below
// them bars beside names.
//
// The layout (layout.go, draw.go) draws on a canvas (canvas.go): svg.go writes elements, png.go fills outlines
// with gg. Libraries for whole plots would add much to the program and to its build.
//
// The outlines of Liberation Sans are embedded for characters of Latin, Greek and Cyrillic, and some symbols (font.go).
// A PNG is drawn with them; an SVG names the font.
//
// The package cuts long texts, and leaves out characters that XML cannot have. The caller bounds the numbers of
// panels, series, intervals and bars.
package plot
