package lab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// Impairment is the faults of a link in one direction.
type Impairment = wire.Impairment

// Value formats and sets a part of an Impairment, such as its loss, in users' syntax.
type Value interface {
	String() string
	Set(text string) error
}

// fraction is a number from 0 to less than 1.
type fraction float64

func (f *fraction) String() string { return FormatFraction(float64(*f)) }

func (f *fraction) Set(s string) error {
	v, err := ParseFraction(s)
	*f = fraction(v)
	return err
}

type duration time.Duration

func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *duration) Set(s string) error {
	v, err := ParseTime(s, wire.MaxDelay)
	*d = duration(v)
	return err
}

type onOff bool

func (o *onOff) String() string {
	if *o {
		return "on"
	}
	return "off"
}

func (o *onOff) Set(s string) error {
	if s != "on" && s != "off" {
		return errors.New("on or off")
	}
	*o = s == "on"
	return nil
}

// burst is a wire.Burst with the text P/R[/1-H[/1-K]], parameters of tc-netem's gemodel, or 0 if it is zero.
type burst wire.Burst

func (b *burst) String() string {
	if *b == (burst{}) {
		return "0"
	}
	list := []float64{b.P, b.R, b.Bad, b.Good}
	for len(list) > 2 && list[len(list)-1] == 0 {
		list = list[:len(list)-1]
	}
	var parts []string
	for _, f := range list {
		parts = append(parts, FormatFraction(f))
	}
	return strings.Join(parts, "/")
}

func (b *burst) Set(s string) error {
	parts, v := strings.Split(s, "/"), burst{}
	to := []*float64{&v.P, &v.R, &v.Bad, &v.Good}
	if s != "0" && (len(parts) < 2 || len(parts) > len(to)) {
		return errors.New("how likely a good link turns bad, and a bad one good, at a segment, as 1%/20%")
	}
	for i, p := range parts {
		if *to[i] = 1; p == "100%" || p == "1" {
			continue
		}
		var err error
		if *to[i], err = ParseFraction(p); err != nil {
			return err
		}
	}
	if len(parts) > 2 && v.Bad == 0 { // wire.Burst has 1 for 0
		return errors.New("the loss of a bad link, 100% if it is left out, cannot be 0")
	}
	*b = v
	return nil
}

type segments []uint32

func (l *segments) String() string {
	var list []string
	for _, n := range *l {
		list = append(list, strconv.FormatUint(uint64(n), 10))
	}
	return strings.Join(list, ",")
}

func (l *segments) Set(s string) error {
	var list []uint32
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return errors.New("numbers of segments of a connection, from 0, as 100,101")
		}
		list = append(list, uint32(n))
	}
	slices.Sort(list)
	if list = slices.Compact(list); len(list) > wire.MaxDrop {
		return fmt.Errorf("%d numbers: %d at most", len(list), wire.MaxDrop)
	}
	*l = list
	return nil
}

// DefaultLimit is the default size of the queue of a link with a rate, in bytes.
const DefaultLimit = 1 << 20

type queueRate wire.Impairment

func (q *queueRate) String() string {
	if q.Rate == 0 {
		return "0"
	}
	return FormatBitRate(q.Rate)
}

func (q *queueRate) Set(s string) (err error) {
	if s == "0" {
		q.Rate, q.Limit = 0, 0
		return nil
	}
	if q.Rate, err = ParseRate(s); err == nil && q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	return err
}

type queueLimit wire.Impairment

func (q *queueLimit) String() string {
	if q.Rate == 0 {
		return ""
	}
	return FormatBytes(uint64(q.Limit))
}

func (q *queueLimit) Set(s string) error {
	n, err := ParseBytes(s)
	if err == nil && (n == 0 || n > wire.MaxLimit) {
		err = errors.New("1 to 1G")
	}
	q.Limit = int(min(n, wire.MaxLimit))
	return err
}

// Impair sets the impairment of all links in the direction from the guest to im, with im.Seed + i as the seed
// of port i's link.
func (d *Description) Impair(im Impairment) {
	for n := range d.AllNICs() {
		n.Link.Up = im
	}
	d.Sow(im.Seed)
}

// Sow sets the seed of port i's link, in the direction from the guest, to seed + i.
func (d *Description) Sow(seed uint64) {
	for n := range d.AllNICs() {
		n.Link.Up.Seed = seed
		seed++
	}
}
