// Package httpserver is the HTTP servers of vnic: of the page, of metrics, of `vnic load`. No other package makes one.
//
// Who can reach a port is not trusted with more than what is served. A request whose Host is neither an address,
// localhost nor the name that the user gave is refused with status 421, whatever it asks for: so no web page reads it
// under a name that leads here (DNS rebinding). A request of HTTP/1.0 without a Host is answered. A server at all
// addresses has the name of this machine, too. A server has a bounded number of connections, each a descriptor and a
// goroutine; one more is closed. A request has headers of 16 KiB and some seconds, an answer twice these, and a
// connection without a request is closed after them. Nothing that a client does makes a line of the log.
package httpserver
