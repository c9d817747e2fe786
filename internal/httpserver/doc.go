// Package httpserver has the HTTP server that the page, the metrics and `vnic load` use. No other package makes one.
//
// Clients that can reach the port may read what is served, and are not trusted otherwise. A request whose Host is
// neither an address, localhost nor the name that the user gave is refused with status 421, whatever it asks for: so a
// web page cannot read the answers under a name that its owner resolves to this machine (DNS rebinding). A request of
// HTTP/1.0 without a Host is answered. A server that listens at all addresses also accepts the name of this machine. A
// server has a bounded number of connections, each with a descriptor and a goroutine; it closes further ones. The
// headers of a request may have about 16 KiB. A client may take Options.Patience to send a request, and, unless
// Options.Long is set, twice as long to read the answer; a connection without a request is then closed after
// Options.Patience. What clients do appears in the log at most at level debug.
package httpserver
