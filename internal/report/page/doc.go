// Package page shows a running vnic in a browser: the lab, its links, flows, GPUs' memory and events, live over HTTP,
// or as one HTML file of a run that has ended. What it shows is stat.Page, the counters of `vnic stat`.
//
// A Recorder reads the counters once a second, and up to four times a second while a page is open.
// Reading takes a tenth of the time at most, however many flows guests make: after a long read the
// Recorder waits ten times as long. It reads the 200 flows that moved most, and waits for no guest
// (stat.Server.Page). The Recorder keeps at most 300 samples: when there are more, it drops every
// second one, and takes samples half as often from then on. A sample has the 64 busiest links and
// the 32 largest flows.
//
// A Server serves the page, and sends one state a second as server-sent events. It has at most 64
// connections, and at most 32 of these receive events; it closes a connection whose client reads
// nothing for 5 seconds. A state has the 128 largest flows and 8,192 cells of GPUs' memory at most.
// A report is below 2 MB: if the samples do not fit, it has fewer of them, and if not even one fits,
// there is an error and no report.
//
// The page is made of the files in the directory web, when it is first used. It loads nothing else: its content
// security policy allows the page's own scripts and styles, by their hashes, and requests to its own server. Names
// from guests and lab files are text everywhere, never HTML.
package page
