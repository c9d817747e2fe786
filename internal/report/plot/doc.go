// Package plot draws a picture of a run, as SVG or PNG: panels of rates over time, one above the other with the
// same axes, and below them bars beside names.
//
// The layout (layout.go, draw.go) draws polygons, lines and texts on a canvas (canvas.go): svg.go writes
// elements, png.go fills outlines with gg. Libraries for whole plots are not used: they would add much to the
// program and to its build.
//
// The outlines of Liberation Sans are embedded for characters of Latin, Greek and Cyrillic (font.go). A PNG is
// drawn with them; an SVG names the font. The fonts' own files are not embedded, because the library that reads
// them (x/image/font/sfnt) would have to be built too.
//
// The package cuts long texts, escapes text, and leaves out characters that XML cannot have. The caller bounds
// the numbers of panels, series, intervals and bars.
package plot
