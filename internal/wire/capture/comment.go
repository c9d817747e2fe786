package capture

import (
	"strconv"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
)

// text is a comment being made: fmt would be slow for each packet.
type text []byte

func (t *text) add(parts ...any) {
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			*t = append(*t, p...)
		case int:
			*t = strconv.AppendInt(*t, int64(p), 10)
		case uint32:
			*t = strconv.AppendUint(*t, uint64(p), 10)
		case offset:
			*t = strconv.AppendUint(append(*t, "0x"...), uint64(p), 16)
		}
	}
}

type offset uint64

func (t *text) part(parts ...any) {
	if len(*t) > 0 {
		t.add("; ")
	}
	t.add(parts...)
}

// comment makes the comment of a frame: its segments if it is a GSO packet, the receive queue, the place of its
// payload, and its fate, as far as they are known.
func (r *record) comment(t *text) {
	*t = (*t)[:0]
	if r.segments > 1 {
		t.add("super-packet of ", r.segments, " segments of ", r.mss, " bytes")
	}
	if r.iface.rx && r.queue >= 0 && r.verdict == wire.Taken {
		t.part("queue ", r.queue)
		switch {
		case r.split:
			t.add(", split: ", r.header, " bytes in the header buffer")
		case r.unsplit:
			t.add(", whole, as it cannot be split")
		default:
			t.add(", whole")
		}
		if r.merged {
			t.add(", merged with others of its flow")
		}
	}
	if r.payload > 0 && r.places.n > 0 {
		t.part(r.payload)
		switch {
		case !r.iface.rx:
			t.add(" bytes of payload from ")
		case r.verdict == wire.Taken:
			t.add(" bytes of payload to ")
		default:
			t.add(" bytes of payload still in ")
		}
		r.places.text(t)
		if r.bounced {
			t.add(", bounced through host memory")
		}
	}
	if r.losses > 0 {
		t.part("lost on the link")
		r.lostText(t)
	}
	if r.held > 0 {
		t.part()
		if r.segments > 1 {
			t.add(r.held, " of its segments ")
		}
		t.add("held back on the link")
	}
	if r.nEnds > 0 && r.verdict == wire.Taken {
		r.endsText(t)
		return
	}
	r.fate(t)
}

func (r *record) endsText(t *text) {
	for i := range r.ends[:r.nEnds] {
		e := &r.ends[i]
		t.part("to ", e.iface.name[:len(e.iface.name)-len(rxSuffix)])
		if e.frames > 1 {
			t.add(" as ", e.frames, " frames")
		}
		if e.queue >= 0 && e.dropped < e.frames {
			t.add(": queue ", e.queue)
			switch {
			case e.split:
				t.add(", split: ", e.header, " bytes in the header buffer")
			case e.unsplit:
				t.add(", whole, as it cannot be split")
			default:
				t.add(", whole")
			}
			if e.merged {
				t.add(", merged with others of its flow")
			}
		}
		if i == 0 && r.taken.n > 0 && e.payload > 0 {
			t.add(", ", e.payload, " bytes of payload to ")
			r.taken.text(t)
			if e.bounced {
				t.add(", bounced through host memory")
			}
		}
		switch {
		case e.dropped == 0:
			continue
		case e.dropped < e.frames:
			t.add(", ", e.dropped, " of the frames")
		}
		if e.reason == wire.DropLinkLoss {
			t.add(" lost on its link")
		} else {
			t.add(" dropped: ", e.reason.String())
		}
	}
	if r.more > 0 {
		t.part("and to others")
	}
}

func (r *record) fate(t *text) {
	switch {
	case r.verdict == wire.Taken && r.iface.rx: // where it went is in the comment already, if known
	case r.verdict == wire.Taken:
		t.part("taken")
	case r.reason != wire.DropLinkLoss:
		t.part("dropped: ", r.reason.String())
		if r.queue >= 0 {
			t.add(", queue ", r.queue)
		}
	case r.losses > 0:
	case r.iface.rx:
		t.part("lost on the link")
	default:
		t.part("lost on the receiver's link")
	}
}

// lostText adds which segments of a GSO packet were lost, counted from 1.
func (r *record) lostText(t *text) {
	if r.segments == 1 {
		return
	}
	for i, l := range r.lost[:r.losses] {
		switch {
		case i > 0:
			t.add(", ")
		case r.losses == 1 && l.n == 1:
			t.add(", segment ")
		default:
			t.add(", segments ")
		}
		t.add(l.first + 1)
		if l.n > 1 {
			t.add("-", l.first+l.n)
		}
	}
	if r.lostMore {
		t.add(" and more")
	}
	t.add(" of ", r.segments)
}

// text adds where the payload lies: in GPU memory with the offset and length of each fragment.
func (ps *locations) text(t *text) {
	all := ps.frag[:ps.n]
	for i := range all {
		f := &all[i]
		next := i == 0 || f.gpu != all[i-1].gpu || f.domain != all[i-1].domain
		switch {
		case !next:
			t.add(", ")
		case i > 0:
			t.add(" and ")
		}
		if f.gpu < 0 {
			t.add(memory(f.domain))
			if len(all) > 1 {
				t.add(" (", f.len, " bytes)")
			}
			continue
		}
		if next {
			t.add("GPU ", f.gpu)
			if f.domain != dma.GPU {
				t.add(" outside of registered buffers")
			}
			t.add(", frag ")
		}
		t.add(offset(f.off), "+", f.len)
	}
	if ps.more > 0 {
		t.add(" and ", ps.more, " more")
	}
}

func memory(d dma.MemKind) string {
	switch d {
	case dma.Wire:
		return "a buffer of the wire"
	case dma.Private: // frames made by a NIC
		return "the NIC's own memory"
	}
	return "host memory"
}
