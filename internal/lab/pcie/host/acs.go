package host

import "encoding/binary"

// Extended capabilities (PCI Express Base Specification 6.0, sections 7.6.3 and 7.7.11;
// include/uapi/linux/pci_regs.h).
const (
	extendedAt = 0x100
	idACS      = 0x000d
	controlACS = 6 // offset in the capability; 16 bits

	// P2P Request Redirect, P2P Completion Redirect, P2P Egress Control.
	redirectACS = 1<<2 | 1<<3 | 1<<5
)

// acsRedirects reports whether Access Control Services in a function's configuration space may redirect
// peer-to-peer requests or completions (redirectACS).
// The loop is bounded, as the list may be circular.
func acsRedirects(config []byte) bool {
	pos := extendedAt
	for range (4096 - extendedAt) / 8 {
		if pos < extendedAt || pos+8 > len(config) {
			return false
		}
		head := binary.LittleEndian.Uint32(config[pos:])
		if head&0xffff == idACS {
			return binary.LittleEndian.Uint16(config[pos+controlACS:])&redirectACS != 0
		}
		pos = int(head >> 20)
	}
	return false
}
