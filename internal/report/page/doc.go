// Package page shows a running vnic in a browser: the lab, its links, flows, GPUs' memory and events, live over
// HTTP, or as one HTML file of a run that has ended. What it shows is stat.Page.
//
// A Recorder reads the counters once a second, and up to four times a second while a page is open. After a long
// read it waits ten times as long. It keeps at most 300 samples: when there are more, it drops every second
// one, and takes samples half as often from then on.
//
// A Server sends a page one state a second as server-sent events, and closes a connection whose client reads
// nothing for 5 seconds. A report is below 2 MB: if the samples do not fit, it has fewer of them.
//
// The page is one document: its content security policy allows its own scripts and styles, by their hashes, and
// requests to its own server. Names from guests and lab files are text, never HTML.
package page
