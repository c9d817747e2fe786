package driver

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/virtq"
)

// split is the state of a bound queue: chains of a header buffer in host memory and pages of a GPU
// (docs/specs/virtio.md, 4), owned by the polling goroutine.
//
// A returned chain keeps the pages that its frame did not use, in order; fill adds others, if src has any, before the
// chain is posted again. A chain without any page, or for which the ring has no room, waits in idle.
type split struct {
	gpu      GPUInfo
	src      PageSource
	hdrs     []memory   // by cookie
	pages    [][]uint64 // by cookie: the pages of a chain, as offsets in the GPU; the capacity is PagesPerChain
	idle     []uint32   // cookies of chains that are neither posted nor in rxQueue.used
	posted   int
	draining bool          // no more chains are posted
	drained  chan struct{} // closed, and set to nil, when draining and nothing is posted
	bufs     []virtq.Buf
}

func newSplit(gpu GPUInfo, src PageSource, hdrs []memory, perChain int) *split {
	s := &split{
		gpu: gpu, src: src, hdrs: hdrs, pages: make([][]uint64, len(hdrs)), idle: make([]uint32, len(hdrs)),
		bufs: make([]virtq.Buf, 0, 1+perChain), drained: make(chan struct{}),
	}
	all := make([]uint64, len(hdrs)*perChain)
	for i := range s.pages {
		s.pages[i] = all[i*perChain : i*perChain : (i+1)*perChain]
		s.idle[i] = uint32(len(hdrs) - 1 - i)
	}
	return s
}

func (q *rxQueue) pollSplit(b *batch, got bool) (worked bool, err error) {
	refill := q.refill.Load() && q.refill.Swap(false)
	if !got && !refill {
		return false, nil
	}
	done := 0
	for done < q.have {
		n, err := q.takeSplit(b, q.used[done:q.have])
		if err != nil {
			return false, err
		}
		if n == 0 {
			break
		}
		b.deliver(q)
		if err := q.postSplit(q.used[done : done+n]); err != nil {
			return false, err
		}
		done += n
	}
	q.have = copy(q.used, q.used[done:q.have])
	if refill {
		err = q.postSplit(nil)
	}
	return true, err
}

// takeSplit adds split frames to b, removes their pages from the chains, and returns how many chains it has
// processed. It drops frames that are not split, or longer than maxFrame.
func (q *rxQueue) takeSplit(b *batch, used []virtq.Used) (n int, err error) {
	s := q.split
	for n < len(used) && b.hasSpace() {
		first := used[n]
		if first.Len == 0 { // the device returns the chain unused, as when split was turned off
			n++
			continue
		}
		hdr := s.hdrs[first.Cookie].b
		var h netHdr
		count, err := q.readHeader(&h, hdr, int(first.Len), "chain")
		if err != nil || count > len(used)-n {
			return n, err
		}
		chains := used[n : n+count]
		n += count
		hdrLen := int(h.hdrLen)
		if hdrLen == 0 || hdrLen > len(hdr)-netHdrLen || hdrLen > int(first.Len)-netHdrLen || !s.fits(chains, hdrLen) {
			q.stats.unsplit.Add(1)
			q.n.setUpAgain()
			continue
		}
		if err := q.addSplit(b, &h, hdr[netHdrLen:netHdrLen+hdrLen], chains); err != nil {
			return n, err
		}
	}
	return n, nil
}

func payloadOf(chains []virtq.Used, i, hdrLen int) int {
	if i == 0 {
		return int(chains[0].Len) - netHdrLen - hdrLen
	}
	return int(chains[i].Len)
}

// fits reports whether each chain's payload fits into its pages. The payload of a split frame does.
func (s *split) fits(chains []virtq.Used, hdrLen int) bool {
	for i, u := range chains {
		if payloadOf(chains, i, hdrLen) > len(s.pages[u.Cookie])*PageSize {
			return false
		}
	}
	return true
}

func (q *rxQueue) addSplit(b *batch, h *netHdr, header []byte, chains []virtq.Used) error {
	f := b.next()
	*f = RxFrame{Queue: q.index, Header: header, Split: true}
	if err := h.offload(&q.n.offloads, f); err != nil {
		b.drop()
		return err
	}
	for i := range chains {
		f.PayloadLen += payloadOf(chains, i, len(header))
	}
	if f.PayloadLen > maxFrame {
		q.stats.dropped.Add(1)
		b.drop()
		return nil
	}
	start := len(b.ranges)
	for i, u := range chains {
		b.ranges = q.split.take(b.ranges, u.Cookie, payloadOf(chains, i, len(header)))
	}
	f.Payload = b.ranges[start:len(b.ranges):len(b.ranges)]
	q.stats.frames.Add(1)
	q.stats.bytes.Add(uint64(len(header) + f.PayloadLen))
	q.stats.payload.Add(uint64(f.PayloadLen))
	return nil
}

func (s *split) take(ranges []Range, cookie uint32, n int) []Range {
	pages := s.pages[cookie]
	i := 0
	for ; n > 0; i++ {
		k := min(n, PageSize)
		ranges = append(ranges, Range{GPU: s.gpu.ID, Off: pages[i], Len: uint32(k)})
		n -= k
	}
	if i > 0 {
		s.pages[cookie] = pages[:copy(pages, pages[i:])]
	}
	return ranges
}

func (q *rxQueue) postSplit(back []virtq.Used) error {
	s := q.split
	s.posted -= len(back)
	if s.draining {
		for _, u := range back {
			s.idle = append(s.idle, u.Cookie)
		}
		if s.posted == 0 && s.drained != nil {
			close(s.drained)
			s.drained = nil
		}
		return nil
	}
	dry := false
	for _, u := range back {
		if err := q.postChain(u.Cookie, &dry); err != nil {
			return err
		}
	}
	for n := len(s.idle); n > 0 && !dry; n-- {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		if err := q.postChain(c, &dry); err != nil {
			return err
		}
	}
	if dry {
		q.stats.full.Add(1)
	}
	q.publish()
	return nil
}

func (q *rxQueue) postChain(c uint32, dry *bool) error {
	s := q.split
	if !*dry {
		full, err := s.fill(q.index, c)
		if err != nil {
			return err
		}
		*dry = !full
	}
	if len(s.pages[c]) == 0 {
		s.idle = append(s.idle, c)
		return nil
	}
	hdr := &s.hdrs[c]
	bufs := append(s.bufs[:0], virtq.Buf{Addr: hdr.addr, Len: uint32(len(hdr.b))})
	for _, off := range s.pages[c] {
		last := &bufs[len(bufs)-1]
		if addr := s.gpu.Addr + off; len(bufs) > 1 && addr == last.Addr+uint64(last.Len) {
			last.Len += PageSize
		} else {
			bufs = append(bufs, virtq.Buf{Addr: addr, Len: PageSize})
		}
	}
	if err := q.ring.Add(nil, bufs, c); errors.Is(err, virtq.ErrFull) { // only without indirect descriptors
		s.idle = append(s.idle, c)
		*dry = true
		return nil
	} else if err != nil {
		return err
	}
	s.posted++
	return nil
}

func (s *split) fill(queue int, c uint32) (full bool, err error) {
	have := s.pages[c]
	want := have[len(have):cap(have)]
	if len(want) == 0 {
		return true, nil
	}
	n := s.src.TakePages(queue, want)
	if n < 0 || n > len(want) {
		return false, fmt.Errorf("its PageSource took %d pages of %d", n, len(want))
	}
	s.pages[c] = have[:len(have)+n]
	for _, off := range want[:n] {
		if off%PageSize != 0 || s.gpu.Size < PageSize || off > s.gpu.Size-PageSize {
			return false, fmt.Errorf("its PageSource gave %#x, not a page of GPU %d of %#x bytes", off, s.gpu.ID, s.gpu.Size)
		}
	}
	return n == len(want), nil
}

// giveBack returns the queue's pages to the PageSource and ends the binding. The device must not be using the queue.
func (q *rxQueue) giveBack() {
	s := q.split
	if s == nil {
		return
	}
	q.split, q.have = nil, 0
	for c, pages := range s.pages {
		if len(pages) > 0 {
			s.src.ReturnPages(q.index, pages)
			s.pages[c] = pages[:0]
		}
	}
}
