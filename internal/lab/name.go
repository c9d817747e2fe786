package lab

import (
	"errors"

	"vnic.dev/vnic/internal/wire/gateway"
)

// maxName is the maximum length of a user's name, in bytes: vnic adds to such names, as for sockets.
const maxName = 31

// errName is the error of a name that CheckName refuses.
var errName = errors.New("a letter, then letters, digits and dashes, no dash at the end, 31 at most, in lower case")

// CheckName checks a name that a user gives to a guest, to a NIC, GPU, socket or switch of a guest, or
// to an uplink. Each must be a label of a host name, because the gateway's DNS server resolves the names
// of guests.
func CheckName(s string) error {
	if !gateway.IsLabel(s) || len(s) > maxName || s[0] < 'a' {
		return errName
	}
	return nil
}

// HasName reports whether a lab with a gateway has a host of this name already: "gateway" is the
// gateway, and "localhost" is each guest itself. A guest cannot have such a name.
func HasName(s string) bool { return s == gateway.GatewayName || s == "localhost" }
