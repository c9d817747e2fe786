package lab

import (
	"errors"

	"vnic.dev/vnic/stack/gateway"
)

// maxName is the longest name that a user gives, in bytes: names are parts of others, as of sockets.
const maxName = 31

// errName says what a name is.
var errName = errors.New("a letter, then letters, digits and dashes, no dash at the end, 31 at most, in lower case")

// CheckName says what is wrong with a name that a user gives to a guest, something in it or an uplink. All of them are
// labels of host names, as the gateway gives them to guests.
func CheckName(s string) error {
	if !gateway.IsLabel(s) || len(s) > maxName || s[0] < 'a' {
		return errName
	}
	return nil
}

// HasName reports whether a guest of a lab with a gateway cannot have a name, as the gateway or each guest itself has it.
func HasName(s string) bool { return s == gateway.GatewayName || s == "localhost" }
