package host

import "encoding/binary"

// Extended capabilities (PCI Express Base Specification 6.0, sections 7.6.3 and 7.7.11; include/uapi/linux/pci_regs.h).
const (
	extendedAt = 0x100
	idACS      = 0x000d
	controlACS = 6 // bytes into it, 16 bits

	// P2P Request Redirect, P2P Completion Redirect, P2P Egress Control.
	redirectACS = 1<<2 | 1<<3 | 1<<5
)

// acsRedirects looks for Access Control Services in a function's configuration space, and says whether they redirect. A
// list that goes in circles ends: no more capabilities fit than there are places.
func acsRedirects(config []byte) bool {
	at := extendedAt
	for range (4096 - extendedAt) / 8 {
		if at < extendedAt || at+8 > len(config) {
			return false
		}
		head := binary.LittleEndian.Uint32(config[at:])
		if head&0xffff == idACS {
			return binary.LittleEndian.Uint16(config[at+controlACS:])&redirectACS != 0
		}
		at = int(head >> 20)
	}
	return false
}
