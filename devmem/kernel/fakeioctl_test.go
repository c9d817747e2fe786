package kernel

import (
	"encoding/binary"
	"maps"
	"slices"
	"syscall"
)

// ioctl answers the commands of SIOCETHTOOL that the package uses; others are EOPNOTSUPP.
func (f *fakeNIC) ioctl(b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fs := b[min(len(b), rxnfcSpec):]
	switch native.Uint32(b) {
	case ethtoolGRXCLSRLCNT:
		native.PutUint32(b[rxnfcCount:], uint32(len(f.rules)))
		native.PutUint64(b[rxnfcData:], uint64(f.ruleRoom))
		if f.special {
			native.PutUint64(b[rxnfcData:], uint64(f.ruleRoom)|locSpecial)
		}
	case ethtoolGRXCLSRLALL:
		native.PutUint64(b[rxnfcData:], uint64(f.ruleRoom))
		binary.Encode(b[rxnfcLocs:], native, slices.Collect(maps.Keys(f.rules)))
		native.PutUint32(b[rxnfcCount:], uint32(len(f.rules)))
	case ethtoolSRXCLSRLINS:
		loc := native.Uint32(fs[specLoc:])
		if !f.ntuple {
			return syscall.EOPNOTSUPP
		}
		if f.special && loc == locAny {
			loc = 0
			for f.rules[loc] != nil {
				loc++
			}
			native.PutUint32(fs[specLoc:], loc)
		}
		if int(loc) >= f.ruleRoom {
			return syscall.ENOSPC
		}
		f.rules[loc] = slices.Clone(b)
	case ethtoolSRXCLSRLDEL:
		loc := native.Uint32(fs[specLoc:])
		if f.rules[loc] == nil {
			return syscall.ENOENT
		}
		delete(f.rules, loc)
	case ethtoolGRXFHINDIR:
		if native.Uint32(b[4:]) == 0 {
			native.PutUint32(b[4:], uint32(len(f.rss)))
			break
		}
		binary.Encode(b[8:], native, f.rss)
	case ethtoolSRXFHINDIR:
		n := int(native.Uint32(b[4:]))
		if f.dflt = n == 0; f.dflt {
			f.rss = equalTable(len(f.rss), f.queues)
			break
		}
		if n != len(f.rss) {
			return syscall.EINVAL
		}
		binary.Decode(b[8:], native, f.rss)
	case ethtoolGSSETINFO:
		native.PutUint32(b[16:], uint32(len(f.strings)))
	case ethtoolGSTRINGS:
		for i, s := range f.strings {
			copy(b[12+i*ethGStringLen:], s)
		}
	case ethtoolGSTATS:
		binary.Encode(b[8:], native, f.values)
	default:
		return syscall.EOPNOTSUPP
	}
	return nil
}
