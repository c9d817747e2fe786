package capture

import (
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Bounds of a record's lists; beyond them a record only notes that there are more.
const (
	maxFrags = 20 // 64 KiB of payload lie in at most 17 pages of 4 KiB
	maxLost  = 8
)

// record is one frame on its way to the file. The goroutine that has reserved it owns it until commit, then the writer.
type record struct {
	turn  atomic.Uint64 // see ring
	index uint64

	iface    *iface // nil: nothing to write
	when     int64  // Unix time in ns at which the record was reserved
	data     []byte
	n        int
	length   uint32 // of the frame
	payload  uint32 // payload bytes, part of length
	segments uint32
	mss      uint32
	verdict  wire.VerdictKind
	reason   wire.DropReason
	queue    int // -1: none
	split    bool
	header   uint32 // if split: bytes in the header buffer
	unsplit  bool
	merged   bool
	bounced  bool
	places   locations
	lost     [maxLost]run // segments that the sender's link lost
	losses   int          // used elements of lost
	lostMore bool
	held     int

	// With Options.Once: origin is the packet that is being sent; nil: none, or its Sent was called. ends has its fate
	// at its first receivers, taken the place of the payload at the first one.
	origin atomic.Pointer[wire.Packet]
	ends   [maxEnds]end
	nEnds  int
	more   int
	taken  locations
}

const maxEnds = 4

// end is a frame's fate at one receiver.
type end struct {
	iface   *iface
	frames  int // the frame, or its pieces, that came; dropped ones included
	dropped int
	payload uint32 // bytes of payload that the receiver took
	reason  wire.DropReason
	queue   int
	split   bool
	header  uint32
	unsplit bool
	merged  bool
	bounced bool
}

// arrived records that a receiver has taken or dropped the packet or a piece of it.
func (r *record) arrived(i *iface, p *wire.Packet, place *wire.Placement) {
	k := r.nEnds - 1
	if k < 0 || r.ends[k].iface != i {
		if r.nEnds == maxEnds {
			r.more++
			return
		}
		k, r.nEnds = r.nEnds, r.nEnds+1
		r.ends[k] = end{iface: i, queue: -1}
	}
	e := &r.ends[k]
	e.frames++
	if p.Verdict.Kind != wire.Taken {
		e.dropped, e.reason = e.dropped+1, p.Verdict.Reason
		return
	}
	e.queue, e.split, e.unsplit, e.bounced = place.Queue, place.Split, place.Unsplit, e.bounced || place.Bounced
	e.merged = e.merged || place.Merged
	e.header = max(e.header, place.HeaderLen)
	e.payload += p.PayloadLen
	if k == 0 && place.Payload != nil {
		r.taken.append(place.Payload, p.PayloadLen)
	}
}

// run is segments [first, first+n).
type run struct{ first, n uint32 }

func (r *record) frame(w *wire.Worker, p *wire.Packet, segs []dma.Segment, payload int) {
	r.length, r.payload, r.segments, r.mss = p.Len(), p.PayloadLen, p.Segments(), uint32(p.Meta.GSOSize)
	r.verdict, r.reason = p.Verdict.Kind, p.Verdict.Reason
	r.queue, r.split, r.unsplit, r.merged, r.bounced = -1, false, false, false, false
	r.losses, r.lostMore, r.held = 0, false, 0
	r.places.set(segs, p.PayloadLen)
	r.n = copy(r.data, p.Header)
	payload = max(payload, roceHead(w, p, segs, r.data[r.n:]))
	k := min(payload, int(p.PayloadLen), len(r.data)-r.n)
	if k <= 0 || r.n < len(p.Header) || len(segs) == 0 {
		return
	}
	// After a fault, the record has fewer bytes of payload.
	got, _ := w.Copier.Read(r.data[r.n:r.n+k], segs)
	r.n += got
}

// loss records which segments the sender's link l lost, and how many it held back.
func (r *record) loss(l *wire.Link, p *wire.Packet) {
	r.held = p.Held()
	for from := uint32(0); ; {
		first, n := l.Lost(p, from)
		if n == 0 {
			return
		}
		if r.losses == maxLost {
			r.lostMore = true
			return
		}
		r.lost[r.losses] = run{first, n}
		r.losses++
		from = first + n
	}
}

type locations struct {
	frag [maxFrags]frag
	n    int
	more int
}

// frag is a piece of payload. Consecutive pieces outside of GPUs that lie in one kind of memory are one frag.
type frag struct {
	gpu    int // number of the GPU whose memory it lies in; -1: none
	domain dma.MemKind
	off    uint64 // offset in the GPU's memory; 0 without a GPU
	len    uint32
}

func (ps *locations) set(segs []dma.Segment, n uint32) {
	ps.n, ps.more = 0, 0
	ps.append(segs, n)
}

func (ps *locations) append(segs []dma.Segment, n uint32) {
	for _, s := range segs {
		s.Len = min(s.Len, n)
		n -= s.Len
		for s.Len > 0 {
			d, k := s.MemKind()
			if k == 0 { // the copier will return an error
				k = s.Len
			}
			f := frag{gpu: s.GPU(), domain: d, len: k}
			if f.gpu >= 0 {
				f.off = s.Region.FileOffset() + s.Off
			}
			ps.add(f)
			s.Off, s.Len = s.Off+uint64(k), s.Len-k
		}
	}
}

func (ps *locations) add(f frag) {
	switch last := ps.n - 1; {
	case f.gpu < 0 && last >= 0 && ps.more == 0 && ps.frag[last].gpu < 0 && ps.frag[last].domain == f.domain:
		ps.frag[last].len += f.len
	case ps.n == maxFrags:
		ps.more++
	default:
		ps.frag[ps.n] = f
		ps.n++
	}
}

func recordSize(payload int) int { return splitter.MaxHeader + payload }
