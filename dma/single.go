package dma

// Copies of what most frames are: few bytes in one or two segments, for which two cursors cost more than the bytes.

// kindOf returns the kind and the GPU of the first n bytes of a segment that may be touched. same is false if they are
// of several kinds.
func (s *Segment) kindOf(n int) (kind MemKind, gpu int, same bool) {
	f := s.Region.file
	if f == nil {
		return s.Region.buf, -1, true
	}
	kind, goesOn := f.MemKind(s.Region.off + s.Off)
	return kind, f.GPU(), uint64(n) <= goesOn
}

// count counts n bytes of one kind at each end, as done does.
func (c *Copier) count(dst, src MemKind, gpu, n int) { c.counts.bytes[src][dst][gpu+1].Add(uint64(n)) }

// Read copies src to dst, a slice of the caller's own, until one of them ends.
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
		k := copy(dst[n:], from) // dst is in no file: see move
		if kind, gpu, same := s.kindOf(k); same {
			c.count(Private, kind, gpu, k)
		} else {
			c.done(&cursor{rest: dst[n:]}, &cursor{rest: from, region: s.Region, off: s.Off}, k)
		}
		n += k
	}
	return n, nil
}

// behind is CopyBehind of one segment at most, into one that has room for head. done is false if that is not simple:
// then nothing was copied.
func (c *Copier) behind(dst *Segment, head []byte, src []Segment) (n uint64, err error, done bool) {
	done = true
	defer Recover(&err)
	to, err := dst.bytes(Write)
	if err != nil {
		return 0, err, true
	}
	dk, dg, same := dst.kindOf(len(to))
	if !same || len(src) > 0 && src[0].Region != nil && src[0].Region.file == dst.Region.file {
		return 0, nil, false // of several kinds, or in one file, where they may overlap
	}
	copy(to, head)
	if n = uint64(len(head)); n > 0 {
		c.count(dk, Private, dg, len(head))
	}
	if len(src) == 0 || len(to) == len(head) {
		return n, nil, true
	}
	from, err := src[0].bytes(Read)
	if err != nil {
		return n, err, true
	}
	k := copy(to[len(head):], from)
	if sk, sg, same := src[0].kindOf(k); !same {
		at := &cursor{rest: to[len(head):], region: dst.Region, off: dst.Off + n}
		c.done(at, &cursor{rest: from, region: src[0].Region, off: src[0].Off}, k)
	} else {
		if dg < 0 {
			dg = sg
		}
		c.count(dk, sk, dg, k)
	}
	return n + uint64(k), nil, true
}
