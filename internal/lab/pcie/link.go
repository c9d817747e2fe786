package pcie

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// Link is a PCIe link's generation and its number of lanes. The zero Link stands for an unknown link.
type Link struct{ Gen, Width int }

// By generation: billions of transfers per second and lane (PCI Express Base Specification 6.0, section
// 8.2), and the fraction of them that is left for packets by the line code (8b/10b or 128b/130b) or, in
// generation 6, by flits (236 of 256 bytes).
var generations = []struct {
	transfers float64
	payload   float64
}{{}, {2.5, 8. / 10}, {5, 8. / 10}, {8, 128. / 130}, {16, 128. / 130}, {32, 128. / 130}, {64, 236. / 256}}

var widths = []int{1, 2, 4, 8, 12, 16, 32}

var linkWords = regexp.MustCompile(`^gen([0-9])x([0-9]{1,2})$`)

// ParseLink parses a link such as "gen4x16".
func ParseLink(s string) (l Link, err error) {
	if m := linkWords.FindStringSubmatch(s); m != nil {
		l.Gen, _ = strconv.Atoi(m[1]) // no error: m holds digits
		l.Width, _ = strconv.Atoi(m[2])
	}
	if l.Gen < 1 || l.Gen >= len(generations) || !slices.Contains(widths, l.Width) {
		return Link{}, fmt.Errorf("link %q: generation and lanes, from gen1x1 to gen6x16", s)
	}
	return l, nil
}

// Known reports whether l is not the zero Link.
func (l Link) Known() bool { return l != Link{} }

// String returns the text that ParseLink parses; "?" for the zero Link.
func (l Link) String() string {
	if !l.Known() {
		return "?"
	}
	return fmt.Sprintf("gen%dx%d", l.Gen, l.Width)
}

// MarshalText returns the text that ParseLink parses; none for the zero Link.
func (l Link) MarshalText() ([]byte, error) {
	if !l.Known() {
		return nil, nil
	}
	return []byte(l.String()), nil
}

// UnmarshalText parses the output of MarshalText.
func (l *Link) UnmarshalText(b []byte) (err error) {
	*l = Link{}
	if len(b) > 0 {
		*l, err = ParseLink(string(b))
	}
	return err
}

// Transfers returns the rate of a lane in billions of transfers per second, as in sysfs; 0: unknown.
func (l Link) Transfers() float64 { return generations[l.Gen].transfers }

// Rate returns the link's rate in each direction, in bytes per second, packet headers included; 0: unknown.
func (l Link) Rate() float64 {
	g := generations[l.Gen]
	return g.transfers * 1e9 / 8 * g.payload * float64(l.Width)
}
