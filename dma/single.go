package dma

// Read and behind use cursors only to count: for few bytes in one or two segments, two cursors would cost more than the
// copy.

// Read copies src to dst, a slice of this process's own memory, until one of them ends.
func (c *Copier) Read(dst []byte, src []Segment) (n int, err error) {
	defer Recover(&err)
	for i := range src {
		s := &src[i]
		if n == len(dst) {
			break
		}
		from, err := s.bytes(Read)
		if err != nil {
			return n, err
		}
		k := copy(dst[n:], from) // source and destination do not overlap, see move
		if c.counting() {
			c.done(&cursor{rest: dst[n:]}, &cursor{rest: from, region: s.Region, off: s.Off}, k)
		}
		n += k
	}
	return n, nil
}

// behind is CopyBehind to one segment; src must have at most one segment, and dst room for head. done is false if
// the segments of dst and src may overlap: then behind has copied nothing.
func (c *Copier) behind(dst *Segment, head []byte, src []Segment) (n uint64, err error, done bool) {
	done = true
	defer Recover(&err)
	to, err := dst.bytes(Write)
	if err != nil {
		return 0, err, true
	}
	if len(src) > 0 && overlap(dst, &src[0]) {
		return 0, nil, false
	}
	copy(to, head)
	n = uint64(len(head))
	if len(src) == 0 || len(to) == len(head) {
		c.single(dst, head, nil, nil)
		return n, nil, true
	}
	from, err := src[0].bytes(Read)
	if err != nil {
		c.single(dst, head, nil, nil)
		return n, err, true
	}
	k := copy(to[len(head):], from)
	c.single(dst, head, &src[0], from[:k])
	return n + uint64(k), nil, true
}

// overlap reports whether two segments may share bytes. It is true for any two segments of regions without a
// file.
func overlap(a, b *Segment) bool {
	if b.Region == nil || b.Region.file != a.Region.file {
		return false
	}
	if a.Region.file == nil {
		return true
	}
	x, y := a.Region.off+a.Off, b.Region.off+b.Off
	return x < y+uint64(b.Len) && y < x+uint64(a.Len)
}

// single counts the bytes that behind has copied to dst.
func (c *Copier) single(dst *Segment, head []byte, src *Segment, from []byte) {
	if !c.counting() {
		return
	}
	to, _ := dst.bytes(Write)
	d := cursor{rest: to, region: dst.Region, off: dst.Off}
	c.done(&d, &cursor{rest: head}, len(head))
	if src != nil {
		c.done(&d, &cursor{rest: from, region: src.Region, off: src.Off}, len(from))
	}
}
