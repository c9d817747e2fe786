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

// doorbell handles a write of v to word index of BAR2. The write has no effect if the doorbell belongs to no block or
// queue, as after the queue's end.
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
