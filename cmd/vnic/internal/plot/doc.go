// Package plot draws a picture of a run: panels of rates over time, one above the other with the same axes, and below
// them bars beside names. It takes plain data, writes SVG or PNG, and knows nothing of labs.
//
// It draws on gonum's vg, the part of gonum.org/v1/plot that knows lines, text and formats. The part with ready-made
// axes would bring a dozen fonts and the writers of PDF, EPS and TeX into the program, some 6 MB, for axes that are a
// page of code here. Of the Liberation fonts two are embedded, regular and bold. A PNG is drawn with them; an SVG names
// them, and Arial and Helvetica, which are as wide, for viewers that do not have them. No font of the system is read.
//
// The caller's data costs what it costs to draw: nothing is bounded here. Text is escaped, and what XML cannot have is
// left out of it.
package plot
