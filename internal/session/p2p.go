package session

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// P2P is a flag that selects the guests whose NICs may reach GPU memory directly. The zero P2P selects all.
type P2P struct {
	given string
	not   []int // 1 and 3 of off=1,3: guests that are not selected
}

// Type implements pflag.Value.
func (p *P2P) Type() string { return "WHO" }

// String implements pflag.Value.
func (p *P2P) String() string { return cmp.Or(p.given, "on") }

// Set implements pflag.Value: on selects all guests, off none, off=1,3 all but guests 1 and 3.
func (p *P2P) Set(s string) error {
	list, some := strings.CutPrefix(s, "off=")
	switch {
	case s == "on" || s == "off":
		*p = P2P{given: s}
		return nil
	case !some:
		return errors.New("on, off, or off=1,3 for guests by number")
	}
	*p = P2P{given: s}
	for word := range strings.SplitSeq(list, ",") {
		i, err := strconv.Atoi(word)
		if err != nil || i < 0 {
			return fmt.Errorf("guest %q: a number from 0 on", word)
		}
		p.not = append(p.not, i)
	}
	return nil
}

// Of reports whether the flag selects guest i.
func (p *P2P) Of(i int) bool { return p.given != "off" && !slices.Contains(p.not, i) }

func (p *P2P) check(guests int) error {
	for _, i := range p.not {
		switch {
		case i >= guests && guests == 1:
			return fmt.Errorf("--p2p %s: there is guest 0 alone", p)
		case i >= guests:
			return fmt.Errorf("--p2p %s: guests are 0 to %d", p, guests-1)
		}
	}
	return nil
}
