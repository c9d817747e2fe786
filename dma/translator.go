package dma

import "math"

// Translator translates addresses of one space. Unless the space has changed, it first tries the region where the last
// successful translation ended. One goroutine at a time uses it, between Space.Enter and Space.Leave.
type Translator struct {
	space  *Space
	table  *table  // the table that contains region
	region *Region // the region where the last successful translation ended; nil: none
}

// NewTranslator returns a Translator of a space.
func NewTranslator(s *Space) Translator { return Translator{space: s} }

// TranslateMax is Space.TranslateMax.
func (t *Translator) TranslateMax(dst []Segment, limit int, iova, n uint64, a Access) ([]Segment, error) {
	if r := t.region; r != nil && t.table == t.space.table.Load() {
		off := iova - r.iova
		if off < r.size && n <= min(r.size-off, maxSegment) && n != 0 && len(dst) < limit && (a == Read || !r.readOnly) {
			return append(dst, Segment{r, off, uint32(n)}), nil
		}
	}
	return t.translate(dst, limit, iova, n, a)
}

// translate is Space.TranslateMax, and stores the region where the translation ends, for the next one.
func (t *Translator) translate(dst []Segment, limit int, iova, n uint64, a Access) ([]Segment, error) {
	root := t.space.table.Load()
	out, err := t.space.translate(root, dst, limit, iova, n, a)
	if len(out) > len(dst) {
		t.table, t.region = root, out[len(out)-1].Region
	}
	return out, err
}

// ReadAt is Space.ReadAt without Recover.
func (t *Translator) ReadAt(dst []byte, iova uint64) error {
	var few [2]Segment
	segs, err := t.TranslateMax(few[:0], math.MaxInt, iova, uint64(len(dst)), Read)
	for i := range segs {
		b, err := segs[i].bytes(Read)
		if err != nil {
			return err
		}
		dst = dst[copy(dst, b):]
	}
	return err
}
