package uplink

import "encoding/binary"

// The VXLAN header (RFC 7348, 5): 8 bits of flags, 24 reserved, 24 of VNI, 8 reserved. Reserved bits, and
// flags other than I, are sent as 0 and ignored when received.
const (
	vxlanLen = 8
	vxlanI   = 0x08 // flag I: the VNI is valid
)

func putVXLAN(b []byte, vni uint32) {
	binary.BigEndian.PutUint32(b, vxlanI<<24)
	binary.BigEndian.PutUint32(b[4:], vni<<8)
}

// cutVXLAN returns the frame in datagram b, or why it refuses b: no header with flag I (badHeader), or another VNI than
// vni (otherVNI).
func cutVXLAN(b []byte, vni uint32) (frame []byte, why reason) {
	switch {
	case len(b) < vxlanLen || b[0]&vxlanI == 0:
		return nil, badHeader
	case binary.BigEndian.Uint32(b[4:])>>8 != vni:
		return nil, otherVNI
	}
	return b[vxlanLen:], none
}
