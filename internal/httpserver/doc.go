// Package httpserver has vnic's HTTP server.
//
// Clients that can reach the port may read all pages, and are not trusted otherwise. A request with a Host
// that is neither an IP address, localhost nor the host of Options.Addr is refused with status 421: a web
// page cannot read the answers under a name that its owner resolves to this machine (DNS rebinding). A server
// that listens at all addresses also accepts the name of this machine. The number of connections, the size of
// headers, and the time to receive a request are bounded.
package httpserver
