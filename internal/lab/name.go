package lab

import (
	"errors"

	"vnic.dev/vnic/internal/wire/gateway"
)

// maxName is the maximum length of a user's name in bytes; vnic adds to names, as for sockets.
const maxName = 31

var errName = errors.New("a letter, then letters, digits and dashes, no dash at the end, 31 at most, in lower case")

// CheckName checks a user's name for a part of a lab: it must be a label of a host name, in lower case, begin with a
// letter, and have at most maxName bytes.
func CheckName(s string) error {
	if !gateway.IsLabel(s) || len(s) > maxName || s[0] < 'a' {
		return errName
	}
	return nil
}

// HasName reports whether a guest beside a gateway cannot have the name: "gateway" or "localhost".
func HasName(s string) bool { return s == gateway.GatewayName || s == "localhost" }
