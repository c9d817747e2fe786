package pci

import "fmt"

// The MSI-X capability (PCI 3.0, 6.8.2): where its registers are, and some of their bits and limits.
const (
	capMSIX       = 0x11
	msixLen       = 12
	msixControl   = 2 // message control
	msixTable     = 4 // register with the offset of the table, and the BAR in bits 2:0
	msixPBA       = 8 // register with the offset of the pending bits, and the BAR in bits 2:0
	msixMasked    = 1 << 14
	msixEnable    = 1 << 15
	msixEntryLen  = 16
	maxVectors    = 2048
	bitsOfPBAWord = 64
)

// MSIX describes the MSI-X capability. If Vectors is 0, the device has none.
type MSIX struct {
	Vectors  int    // 0, or 1 to 2048
	BAR      int    // the BAR with table and pending bits
	TableOff uint32 // offset of the table in the BAR, a multiple of 8
	PBAOff   uint32 // offset of the pending bits in the BAR, a multiple of 8
}

// addMSIX adds the capability at off, or returns an error if m does not fit the BARs.
func (c *Config) addMSIX(off, link int, m *MSIX, bars *[6]BAR) error {
	if m.Vectors < 1 || m.Vectors > maxVectors {
		return fmt.Errorf("MSI-X: %d vectors, not 1 to %d", m.Vectors, maxVectors)
	}
	if m.BAR < 0 || m.BAR >= len(bars) || bars[m.BAR].Size == 0 {
		return fmt.Errorf("MSI-X: there is no BAR %d", m.BAR)
	}
	table, tableEnd := uint64(m.TableOff), uint64(m.TableOff)+uint64(m.Vectors)*msixEntryLen
	pba, pbaEnd := uint64(m.PBAOff), uint64(m.PBAOff)+uint64((m.Vectors+bitsOfPBAWord-1)/bitsOfPBAWord)*8
	switch size := bars[m.BAR].Size; {
	case table%8 != 0 || pba%8 != 0:
		return fmt.Errorf("MSI-X: table at %#x, pending bits at %#x: not multiples of 8", table, pba)
	case tableEnd > size || pbaEnd > size:
		return fmt.Errorf("MSI-X: table to %#x, pending bits to %#x: BAR %d has %#x bytes", tableEnd, pbaEnd, m.BAR, size)
	case table < pbaEnd && pba < tableEnd:
		return fmt.Errorf("MSI-X: table [%#x, %#x) and pending bits [%#x, %#x) overlap", table, tableEnd, pba, pbaEnd)
	}
	c.capability(off, link, capMSIX)
	le.PutUint16(c.data[off+msixControl:], uint16(m.Vectors-1))
	le.PutUint16(c.mask[off+msixControl:], msixEnable|msixMasked)
	le.PutUint32(c.data[off+msixTable:], m.TableOff|uint32(m.BAR))
	le.PutUint32(c.data[off+msixPBA:], m.PBAOff|uint32(m.BAR))
	c.msix = off
	return nil
}

// MSIXEnabled reports whether MSI-X is enabled and not masked as a whole.
func (c *Config) MSIXEnabled() bool {
	return c.msix != 0 && le.Uint16(c.data[c.msix+msixControl:])&(msixEnable|msixMasked) == msixEnable
}
