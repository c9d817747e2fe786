// Package page shows a running vnic in a browser: the lab, its links, flows, GPUs' memory and events, live over HTTP,
// or as one HTML file of a run that has ended. What it shows is stat.Page, the counters of `vnic stat`.
//
// A Recorder looks at the counters once a second, four times while a page is open, and a look takes at most a tenth of
// the time, however many flows guests make: the 200 that moved most are put together. It keeps at most 300 samples:
// when there are more, every second one is dropped, and from then on they are twice as far apart. A sample has the 64
// busiest links and the 32 largest flows. A Server gives the page, and one state a second over server-sent events. It
// has at most 64 connections, 32 of which may be pages that listen; one that does not read for 5 seconds is dropped. A
// state has the 128 largest flows and 8,192 cells of GPUs' memory, whatever there is. A report is below 2 MB: it has
// fewer samples if they do not fit, and where even two do not, there is none but an error.
//
// The page is files of the directory web, which are put together into one HTML when they are served. It loads nothing
// else: its content security policy allows the scripts that are in it, by their hashes, and requests to where it came
// from. Names from guests and lab files are text everywhere, never HTML.
package page
