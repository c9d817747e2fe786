package pcie

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// Link is the speed of a PCIe link: a generation, and a number of lanes. Of the zero Link nothing is known.
type Link struct{ Gen, Width int }

// Generations by number, from 1: billions of transfers a second on each lane (PCI Express Base Specification 6.0,
// section 8.2), and what is left of them behind the line code: 8b/10b, 128b/130b, and of generation 6's flits of 256
// bytes the 236 that are not CRC, FEC and data link layer.
var generations = []struct {
	transfers float64
	payload   float64
}{{}, {2.5, 8. / 10}, {5, 8. / 10}, {8, 128. / 130}, {16, 128. / 130}, {32, 128. / 130}, {64, 236. / 256}}

var widths = []int{1, 2, 4, 8, 12, 16, 32}

var linkWords = regexp.MustCompile(`^gen([0-9])x([0-9]{1,2})$`)

// ParseLink reads "gen4x16".
func ParseLink(s string) (l Link, err error) {
	if m := linkWords.FindStringSubmatch(s); m != nil {
		l.Gen, _ = strconv.Atoi(m[1]) // digits
		l.Width, _ = strconv.Atoi(m[2])
	}
	if l.Gen < 1 || l.Gen >= len(generations) || !slices.Contains(widths, l.Width) {
		return Link{}, fmt.Errorf("link %q: generation and lanes, from gen1x1 to gen6x16", s)
	}
	return l, nil
}

// Known says whether anything is known of it.
func (l Link) Known() bool { return l != Link{} }

// String is what ParseLink reads; "?" for the zero Link.
func (l Link) String() string {
	if !l.Known() {
		return "?"
	}
	return fmt.Sprintf("gen%dx%d", l.Gen, l.Width)
}

// MarshalText is String; the zero Link is no text.
func (l Link) MarshalText() ([]byte, error) {
	if !l.Known() {
		return nil, nil
	}
	return []byte(l.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (l *Link) UnmarshalText(b []byte) (err error) {
	*l = Link{}
	if len(b) > 0 {
		*l, err = ParseLink(string(b))
	}
	return err
}

// Transfers is what each lane carries, in billions of transfers a second, as sysfs and lspci name the speed.
func (l Link) Transfers() float64 { return generations[l.Gen].transfers }

// Rate is what the link carries in each direction, in bytes a second, headers of packets included.
func (l Link) Rate() float64 {
	g := generations[l.Gen]
	return g.transfers * 1e9 / 8 * g.payload * float64(l.Width)
}
