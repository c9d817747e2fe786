package httpserver

import (
	"errors"
	"net"
	"strconv"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/ownports"
)

// listen listens at HOST:PORT. The host localhost means 127.0.0.1 and, on a machine with IPv6, also ::1 at the same
// port; it is not resolved, because there may be no /etc/hosts.
func listen(addr string) (list []net.Listener, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	for _, host := range hosts {
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if len(list) > 0 && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)) {
			break // no IPv6
		}
		if err != nil {
			for _, l := range list {
				err = errors.Join(err, l.Close())
			}
			return nil, err
		}
		list = append(list, ownports.Listener(l))
		port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port) // the kernel has chosen one for port 0
	}
	return list, nil
}
