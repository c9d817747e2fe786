package capture

import (
	"strconv"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/wire"
)

// text is a comment in the making. It is made for each packet, which fmt takes longer for than all
// else that is written.
type text []byte

func (t *text) str(parts ...string) {
	for _, s := range parts {
		*t = append(*t, s...)
	}
}

func (t *text) num(n uint64) { *t = strconv.AppendUint(*t, n, 10) }
func (t *text) hex(n uint64) { *t = strconv.AppendUint(append(*t, "0x"...), n, 16) }

// part begins a part of the comment.
func (t *text) part() {
	if len(*t) > 0 {
		t.str("; ")
	}
}

// comment says what is to be said of a frame: what it is, where its payload lay or went to, and what became of it.
func (r *record) comment(t *text) {
	*t = (*t)[:0]
	if r.segments > 1 {
		t.str("super-packet of ")
		t.num(uint64(r.segments))
		t.str(" segments of ")
		t.num(uint64(r.mss))
		t.str(" bytes")
	}
	if r.iface.rx && r.queue >= 0 && r.verdict == wire.Taken {
		t.part()
		t.str("queue ")
		t.num(uint64(r.queue))
		switch {
		case r.split:
			t.str(", split: ")
			t.num(uint64(r.header))
			t.str(" bytes in the header buffer")
		case r.unsplit:
			t.str(", whole, as it cannot be split")
		default:
			t.str(", whole")
		}
	}
	if r.payload > 0 && r.places.n > 0 {
		t.part()
		t.num(uint64(r.payload))
		switch {
		case !r.iface.rx:
			t.str(" bytes of payload from ")
		case r.verdict == wire.Taken:
			t.str(" bytes of payload to ")
		default: // it never got there
			t.str(" bytes of payload still in ")
		}
		r.places.text(t)
		if r.bounced {
			t.str(", bounced through host memory")
		}
	}
	if r.losses > 0 {
		t.part()
		t.str("lost on the link")
		r.lostText(t)
	}
	if r.held > 0 {
		t.part()
		if r.segments > 1 {
			t.num(uint64(r.held))
			t.str(" of its segments ")
		}
		t.str("held back on the link")
	}
	r.fate(t)
}

// fate says what became of the frame, as far as it was not lost in part.
func (r *record) fate(t *text) {
	switch {
	case r.verdict == wire.Taken && r.iface.rx: // queue and place say so
	case r.verdict == wire.Taken:
		t.part()
		t.str("taken")
	case r.reason != wire.DropLinkLoss:
		t.part()
		t.str("dropped: ", r.reason.String())
		if r.queue >= 0 {
			t.str(", queue ")
			t.num(uint64(r.queue))
		}
	case r.losses > 0:
	case r.iface.rx:
		t.part()
		t.str("lost on the link")
	default:
		t.part()
		t.str("lost on the receiver's link")
	}
}

// lostText says which segments were lost, counted from 1.
func (r *record) lostText(t *text) {
	if r.segments == 1 {
		return
	}
	for i, l := range r.lost[:r.losses] {
		switch {
		case i > 0:
			t.str(", ")
		case r.losses == 1 && l.n == 1:
			t.str(", segment ")
		default:
			t.str(", segments ")
		}
		t.num(uint64(l.first) + 1)
		if l.n > 1 {
			t.str("-")
			t.num(uint64(l.first) + uint64(l.n))
		}
	}
	if r.lostMore {
		t.str(" and more")
	}
	t.str(" of ")
	t.num(uint64(r.segments))
}

// text says where payload lies: of GPU memory each frag, offset and length in the GPU's memory.
func (ps *places) text(t *text) {
	all := ps.frag[:ps.n]
	for i := range all {
		f := &all[i]
		next := i == 0 || f.gpu != all[i-1].gpu || f.domain != all[i-1].domain
		switch {
		case !next:
			t.str(", ")
		case i > 0:
			t.str(" and ")
		}
		if f.gpu < 0 {
			t.str(memory(f.domain))
			if len(all) > 1 {
				t.str(" (")
				t.num(uint64(f.len))
				t.str(" bytes)")
			}
			continue
		}
		if next {
			t.str("GPU ")
			t.num(uint64(f.gpu))
			if f.domain != dma.GPU {
				t.str(" outside of registered buffers")
			}
			t.str(", frag ")
		}
		t.hex(f.off)
		t.str("+")
		t.num(uint64(f.len))
	}
	if ps.more > 0 {
		t.str(" and ")
		t.num(uint64(ps.more))
		t.str(" more")
	}
}

// memory names memory that is no GPU's.
func memory(d dma.Domain) string {
	if d == dma.Wire {
		return "a buffer of the wire"
	}
	return "host memory"
}
