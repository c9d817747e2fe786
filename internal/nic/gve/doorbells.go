package gve

// writeDoorbells writes BAR2. It is made of words, and what is not whole words does nothing.
func (d *Device) writeDoorbells(off uint64, b []byte) {
	if off%4 != 0 {
		return
	}
	for ; len(b) >= 4; off, b = off+4, b[4:] {
		d.doorbell(uint32(off/4), le.Uint32(b))
	}
}

// doorbell is one word of BAR2. One that belongs to nothing that is there does nothing: it may come late.
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
