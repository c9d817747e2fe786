package ownports

import (
	"net"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestPortsAreKnownWhileTheyAreOpen(t *testing.T) {
	a := Listener(testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t))
	port := uint16(a.Addr().(*net.TCPAddr).Port)
	remove := Add(port)
	testkit.Equal(t, "open", Has(port), true)
	testkit.OK(t, a.Close())
	testkit.Equal(t, "open by another", Has(port), true)
	remove()
	remove()
	testkit.Equal(t, "closed", Has(port), false)
}
