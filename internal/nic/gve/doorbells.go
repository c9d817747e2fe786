package gve

// writeDoorbells handles a write to BAR2. Only aligned words count.
func (d *Device) writeDoorbells(off uint64, b []byte) {
	if off%4 != 0 {
		return
	}
	for ; len(b) >= 4; off, b = off+4, b[4:] {
		d.doorbell(uint32(off/4), le.Uint32(b))
	}
}

// doorbell handles one word of BAR2. A doorbell of an object that does not exist may come late, and has no
// effect.
func (d *Device) doorbell(index, v uint32) {
	switch i := int(index); {
	case i < txDoorbells:
		if i < d.res.blocks {
			d.vectors.arm(d.res.base+i, v)
		}
	case i < rxDoorbells:
		if i -= txDoorbells; i < len(d.tx) && d.res.tx[i].live {
			d.tx[i].doorbell(v)
		}
	default:
		if i -= rxDoorbells; i < len(d.rx) && d.res.rx[i].live {
			d.rx[i].doorbell(v)
		}
	}
}
