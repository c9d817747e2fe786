// Package plot draws a picture of a run: panels of rates over time, one above the other with the same axes, and below
// them bars beside names. It takes plain data, writes SVG or PNG, and knows nothing of labs.
//
// The layout (layout.go, draw.go) draws polygons, lines and texts on a canvas (canvas.go). There are two kinds of
// canvas: svg.go writes elements, png.go fills outlines with gg. The libraries for whole plots are not used: they bring
// axes, TeX, more formats and more fonts into the program, 13 CPU seconds of compiler for these three shapes.
//
// The outlines of Liberation Sans, regular and bold, are embedded for the characters of Latin, Greek and Cyrillic
// (font.go). A PNG is drawn with them. An SVG names the font, and Arial and Helvetica, which are as wide, for viewers
// that do not have it. No font of the system is read. The fonts' own files are not embedded: the library that reads
// them (x/image/font/sfnt) takes 2 CPU seconds to compile.
//
// The package does not bound the numbers of panels, series, intervals and bars: the caller does. It
// bounds the length of a text: it cuts a text that is longer than any picture has room for. It
// escapes text, and leaves out characters that XML cannot have.
package plot
