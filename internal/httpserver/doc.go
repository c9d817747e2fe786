// Package httpserver has vnic's HTTP server.
//
// Clients that can reach the port may read what is served, and are not trusted otherwise. A request with a
// Host that is neither an address, localhost nor the name that the user gave is refused with status 421: a web
// page cannot read the answers under a name that its owner resolves to this machine (DNS rebinding). A server
// that listens at all addresses also accepts the name of this machine. The number of connections, the size of
// headers, and the time for a request are bounded.
package httpserver
