package stat

import "net"

// Listen listens at HOST:PORT, as --metrics does: localhost is 127.0.0.1 and, on a machine with IPv6, ::1 at the same
// port. The caller closes what it gives.
func Listen(addr string) ([]net.Listener, error) { return listen(addr) }
