package dhcp4

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Code is the code of an option (RFC 2132).
type Code uint8

// Codes of options, each with its section of RFC 2132.
const (
	SubnetMask       Code = 1   // 3.3
	Router           Code = 3   // 3.5
	DNS              Code = 6   // 3.8
	HostName         Code = 12  // 3.14
	DomainName       Code = 15  // 3.17
	InterfaceMTU     Code = 26  // 5.1
	BroadcastAddress Code = 28  // 5.3
	RequestedAddress Code = 50  // 9.1
	LeaseTime        Code = 51  // 9.2, seconds
	MessageType      Code = 53  // 9.6
	ServerID         Code = 54  // 9.7
	ParameterList    Code = 55  // 9.8
	ErrorMessage     Code = 56  // 9.9, in a NAK
	MaxMessageSize   Code = 57  // 9.10
	ClientID         Code = 61  // 9.14
	DomainSearch     Code = 119 // RFC 3397

	optPad Code = 0   // 3.1, without a length
	optEnd Code = 255 // 3.2, without a length
)

// Options are a message's options without Pad and End. If an option occurs several times, its value
// is the concatenation of all values (RFC 3396, 7).
type Options map[Code][]byte

// decodeOptions decodes the options after the magic cookie. It ignores bytes after End.
func decodeOptions(b []byte) (Options, error) {
	o := Options{}
	for len(b) > 0 {
		switch code := Code(b[0]); code {
		case optEnd:
			return o, nil
		case optPad:
			b = b[1:]
		default:
			if len(b) < 2 || int(b[1]) > len(b)-2 {
				return nil, fmt.Errorf("option %d: runs past the message's end", code)
			}
			end := 2 + int(b[1])
			o[code] = append(o[code], b[2:end]...)
			b = b[end:]
		}
	}
	return nil, errors.New("options without an End")
}

// append appends the options, and End. It splits long values into several options of the same code
// (RFC 3396, 5).
func (o Options) append(b []byte) []byte {
	for _, code := range slices.Sorted(maps.Keys(o)) {
		for v := o[code]; ; {
			n := min(len(v), 255)
			b = append(b, byte(code), byte(n))
			b = append(b, v[:n]...)
			if v = v[n:]; len(v) == 0 {
				break
			}
		}
	}
	return append(b, byte(optEnd))
}

// Addr returns the value of an option; ok reports that the option exists and is an IPv4 address.
func (o Options) Addr(code Code) (a netip.Addr, ok bool) {
	if b := o[code]; len(b) == 4 {
		return addr(b), true
	}
	return a, false
}

// Addrs returns the addresses of an option; none if its value is not a list of IPv4 addresses.
func (o Options) Addrs(code Code) (list []netip.Addr) {
	b := o[code]
	if len(b)%4 != 0 {
		return nil
	}
	for ; len(b) > 0; b = b[4:] {
		list = append(list, addr(b[:4]))
	}
	return list
}
