// Package page shows a running vnic in a browser: the lab, its links, flows, GPUs' memory and events, live over
// HTTP, or as one HTML file of a run that has ended.
//
// A Recorder reads the counters once a second, and up to four times a second while a page is open, or less often if a
// read takes long. It keeps at most 300 samples: when there are more, it drops every second one, and takes samples half
// as often.
//
// A Server sends a page up to one state a second as server-sent events, and a last state when it ends. A report is
// below 2 MB: if the samples do not fit, it has fewer of them; if one does not fit, there is no report.
//
// The content security policy allows the page's own scripts and styles, by their hashes, images in data URLs, and
// requests to its server. Names from guests and lab files are text, never HTML.
package page
