package driver

// batch holds the frames for one call of Receiver.Receive. Only the polling goroutine uses it.
type batch struct {
	frames []RxFrame
	ranges []Range // payload of split frames
	arena  []byte  // copies of frames that came in several host buffers
}

func (b *batch) init(ring, pages int) {
	b.frames = make([]RxFrame, 0, maxBatch)
	b.ranges = make([]Range, 0, max(1024, 2*ring*pages)) // a frame uses at most all pages of a ring
	b.arena = make([]byte, 0, arenaSize)
}

func (b *batch) hasSpace() bool {
	return len(b.frames) < cap(b.frames) && cap(b.ranges)-len(b.ranges) >= cap(b.ranges)/2 &&
		cap(b.arena)-len(b.arena) >= maxFrame
}

func (b *batch) next() *RxFrame {
	b.frames = b.frames[:len(b.frames)+1]
	return &b.frames[len(b.frames)-1]
}

func (b *batch) drop() { b.frames = b.frames[:len(b.frames)-1] }

// join copies a frame of count pieces, first and piece(1) to piece(count-1), to the arena. ok is false for a frame of
// more than maxFrame bytes.
func (b *batch) join(first []byte, piece func(int) []byte, count int) (frame []byte, ok bool) {
	start := len(b.arena)
	b.arena = append(b.arena, first...)
	for i := 1; i < count; i++ {
		p := piece(i)
		if len(b.arena)-start+len(p) > maxFrame {
			b.arena = b.arena[:start]
			return nil, false
		}
		b.arena = append(b.arena, p...)
	}
	return b.arena[start:len(b.arena):len(b.arena)], true
}

func (b *batch) deliver(q *rxQueue) {
	if len(b.frames) > 0 {
		if r := q.n.receiver.Load(); r != nil {
			(*r).Receive(b.frames)
		} else {
			q.stats.dropped.Add(uint64(len(b.frames)))
		}
	}
	clear(b.frames)
	b.frames, b.ranges, b.arena = b.frames[:0], b.ranges[:0], b.arena[:0]
}
