package ktap

import "slices"

// lines are diagnostics of one case: the first quarter of MaxDiagnostics, and the last ones in a ring.
type lines struct {
	first   []string
	last    []string
	oldest  int // in last
	dropped int
}

const (
	keepFirst = MaxDiagnostics / 4
	keepLast  = MaxDiagnostics - keepFirst
)

// add keeps a line; it returns how many bytes are not kept any more in its place.
func (l *lines) add(s string) (freed int) {
	switch {
	case len(l.first) < keepFirst:
		l.first = append(l.first, s)
	case len(l.last) < keepLast:
		l.last = append(l.last, s)
	default:
		freed = len(l.last[l.oldest])
		l.last[l.oldest] = s
		l.oldest = (l.oldest + 1) % keepLast
		l.dropped++
	}
	return freed
}

// take returns the lines in their order, and how many were not kept; then there are none.
func (l *lines) take() (all []string, dropped int) {
	all, dropped = slices.Concat(l.first, l.last[l.oldest:], l.last[:l.oldest]), l.dropped
	*l = lines{}
	return all, dropped
}
