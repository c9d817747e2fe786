package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// linkSetting is a word for what a link does to what its port sends, and how it is read and written.
type linkSetting struct {
	key  string
	set  func(im *wire.Impairment, v string) error
	text func(im *wire.Impairment) string // "": it does nothing
}

// fractionOf is a setting that is a part of the segments.
func fractionOf(key string, at func(*wire.Impairment) *float64) linkSetting {
	return linkSetting{key, func(im *wire.Impairment, v string) (err error) {
		*at(im), err = ParseFraction(v)
		return err
	}, func(im *wire.Impairment) string {
		if *at(im) == 0 {
			return ""
		}
		return FormatFraction(*at(im))
	}}
}

// durationOf is a setting that is a time.
func durationOf(key string, at func(*wire.Impairment) *time.Duration) linkSetting {
	return linkSetting{key, func(im *wire.Impairment, v string) (err error) {
		*at(im), err = ParseTime(v, wire.MaxDelay)
		return err
	}, func(im *wire.Impairment) string {
		if *at(im) == 0 {
			return ""
		}
		return at(im).String()
	}}
}

// linkSettings are named as tc-netem names them, where it has them.
var linkSettings = []linkSetting{
	fractionOf("loss", func(im *wire.Impairment) *float64 { return &im.Loss }),
	{"gemodel", setBurst, burstText},
	{"drop", setDrop, dropText},
	fractionOf("reorder", func(im *wire.Impairment) *float64 { return &im.Reorder }),
	fractionOf("duplicate", func(im *wire.Impairment) *float64 { return &im.Duplicate }),
	fractionOf("corrupt", func(im *wire.Impairment) *float64 { return &im.Corrupt }),
	{"ecn", func(im *wire.Impairment, v string) error {
		if v != "on" && v != "off" {
			return errors.New("on or off")
		}
		im.ECN = v == "on"
		return nil
	}, func(im *wire.Impairment) string {
		if !im.ECN {
			return ""
		}
		return "on"
	}},
	durationOf("delay", func(im *wire.Impairment) *time.Duration { return &im.Delay }),
	durationOf("jitter", func(im *wire.Impairment) *time.Duration { return &im.Jitter }),
	{"rate", func(im *wire.Impairment, v string) (err error) {
		if v == "0" {
			im.Rate, im.Limit = 0, 0
			return nil
		}
		if im.Rate, err = ParseRate(v); err == nil && im.Limit == 0 {
			im.Limit = DefaultLimit
		}
		return err
	}, func(im *wire.Impairment) string {
		if im.Rate == 0 {
			return ""
		}
		return FormatBitRate(im.Rate)
	}},
	{"limit", func(im *wire.Impairment, v string) error {
		n, err := ParseBytes(v)
		if err == nil && (n == 0 || n > wire.MaxLimit) {
			err = errors.New("1 to 1G")
		}
		im.Limit = int(min(n, wire.MaxLimit))
		return err
	}, func(im *wire.Impairment) string {
		if im.Rate == 0 {
			return ""
		}
		return FormatBytes(uint64(im.Limit))
	}},
}

// DefaultLimit is how many bytes the queue of a link with a rate holds, unless something else is said.
const DefaultLimit = 1 << 20

// setBurst reads P/R, or P/R/1-H/1-K, as tc-netem's gemodel has them.
func setBurst(im *wire.Impairment, v string) error {
	parts := strings.Split(v, "/")
	b := wire.Burst{}
	if v == "0" {
		im.Burst = b
		return nil
	}
	to := []*float64{&b.P, &b.R, &b.Bad, &b.Good}
	if len(parts) < 2 || len(parts) > 4 {
		return errors.New("how likely a good link turns bad, and a bad one good, at a segment, as 1%/20%")
	}
	for i, p := range parts {
		f, err := 1., error(nil)
		if p != "100%" && p != "1" {
			f, err = ParseFraction(p)
		}
		if err != nil {
			return err
		}
		*to[i] = f
	}
	im.Burst = b
	return nil
}

func burstText(im *wire.Impairment) string {
	b := im.Burst
	if b == (wire.Burst{}) {
		return ""
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

// setDrop reads numbers of segments.
func setDrop(im *wire.Impairment, v string) error {
	var list []uint32
	for _, s := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return errors.New("numbers of segments of a connection, from 0, as 100,101")
		}
		list = append(list, uint32(n))
	}
	slices.Sort(list)
	if list = slices.Compact(list); len(list) > wire.MaxDrop {
		return fmt.Errorf("%d numbers: %d at most", len(list), wire.MaxDrop)
	}
	im.Drop = list
	return nil
}

func dropText(im *wire.Impairment) string {
	var list []string
	for _, n := range im.Drop {
		list = append(list, strconv.FormatUint(uint64(n), 10))
	}
	return strings.Join(list, ",")
}

// SetLink changes one thing that a link does; the error says what a value looks like.
func SetLink(im *wire.Impairment, key, value string) error {
	for _, s := range linkSettings {
		if s.key == key {
			if err := s.set(im, value); err != nil {
				return fmt.Errorf("%s is %s: %w", key, value, err)
			}
			return nil
		}
	}
	return fmt.Errorf("a link has no %q: it has %s", key, strings.Join(LinkKeys(), ", "))
}

// CheckLink says what is wrong with all that a link does, where each thing of it is right: a limit is of the queue of a
// link with a rate.
func CheckLink(im *wire.Impairment) error {
	if im.Limit != 0 && im.Rate == 0 {
		return errors.New("limit is of a queue, which a link with a rate has: say rate, too")
	}
	return nil
}

// LinkText is what SetLink was told, "" where it is as it would be anyhow.
func LinkText(im *wire.Impairment, key string) string {
	for _, s := range linkSettings {
		if s.key == key {
			return s.text(im)
		}
	}
	return ""
}

// LinkKeys are what SetLink knows.
func LinkKeys() (keys []string) {
	for _, s := range linkSettings {
		keys = append(keys, s.key)
	}
	return keys
}

// Change is something to be changed in a lab that runs.
type Change struct {
	Kind string      // "link", "nic" or "gpu"
	Of   string      // a NIC, as a.nic0, or a GPU, as a.gpu0
	Set  [][2]string // a word and its value; removal has none, and is alone
}

// Kinds of changes.
const (
	KindLink = "link"
	KindNIC  = "nic"
	KindGPU  = "gpu"
)

// removes says whether it takes something away from its guest.
func (c *Change) removes() bool {
	return slices.ContainsFunc(c.Set, func(x [2]string) bool { return x[0] == removal })
}

// removal is the word for what is taken away from its guest.
const removal = "remove"

// changes are what each kind knows beside what SetLink does of a link.
var changes = map[string][]string{KindLink: {"state"}, KindNIC: append(nicKeys, removal), KindGPU: {removal}}

// Faults lists what can be changed, a kind and a word each: "link loss", "nic remove".
func Faults() (list []string) {
	for _, key := range LinkKeys() {
		list = append(list, KindLink+" "+key)
	}
	for _, kind := range []string{KindLink, KindNIC, KindGPU} {
		for _, key := range changes[kind] {
			list = append(list, kind+" "+key)
		}
	}
	return list
}

// ParseChange reads one, as "link a.nic0 loss=1% state=down", "nic a.nic0 p2p=off" or "gpu a.gpu0 remove".
func ParseChange(s string) (c Change, err error) {
	words := strings.Fields(s)
	if len(words) < 3 {
		return c, errors.New("not a change, as link a.nic0 loss=1%, or nic a.nic0 p2p=off")
	}
	c.Kind, c.Of = words[0], words[1]
	known, ok := changes[c.Kind]
	if !ok {
		return c, fmt.Errorf("%s: a link, a nic or a gpu, as link a.nic0 loss=1%%, nic a.nic0 p2p=off, or gpu a.gpu0 remove",
			c.Kind)
	}
	if words[2] == removal && len(words) == 3 && slices.Contains(known, removal) {
		c.Set = [][2]string{{removal, ""}}
		return c, nil
	}
	for _, w := range words[2:] {
		if key, _, _ := strings.Cut(w, "="); key == removal && slices.Contains(known, removal) {
			return c, fmt.Errorf("%s: it has no value, and nothing else is set, as what is removed does nothing any more", w)
		}
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			return c, fmt.Errorf("%s: a word, = and a value, as loss=1%%", w)
		}
		if !slices.Contains(known, key) {
			if c.Kind != KindLink {
				return c, fmt.Errorf("a %s has no %q: it has %s", c.Kind, key, strings.Join(known, ", "))
			}
			if err := SetLink(new(wire.Impairment), key, value); err != nil {
				if !slices.Contains(LinkKeys(), key) {
					err = fmt.Errorf("a link has no %q: it has %s, %s", key, strings.Join(known, ", "), strings.Join(LinkKeys(), ", "))
				}
				return c, err
			}
		}
		if c.Kind != KindLink {
			if _, err := nicChange(key, value); err != nil {
				return c, err
			}
		} else if key == "state" && value != "up" && value != "down" {
			return c, fmt.Errorf("%s is %s: up or down", key, value)
		}
		c.Set = append(c.Set, [2]string{key, value})
	}
	return c, nil
}

// String is what ParseChange reads.
func (c Change) String() string {
	s := c.Kind + " " + c.Of
	for _, x := range c.Set {
		if s += " " + x[0]; x[0] != removal {
			s += "=" + x[1]
		}
	}
	return s
}

// OnApply has f called with each change that was made (Apply), from now on; nil: nothing is. f returns at once, and
// changes nothing.
func (l *Lab) OnApply(f func(Change)) {
	if f == nil {
		l.applied.Store(nil)
		return
	}
	l.applied.Store(&f)
}

// Apply makes a change, all of it or nothing.
func (l *Lab) Apply(c Change) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if err := l.apply(c); err != nil {
		return err
	}
	l.opt.Log.Info("changed", "what", c.String())
	if f := l.applied.Load(); f != nil {
		(*f)(c)
	}
	return nil
}

// apply is Apply; changing is held.
func (l *Lab) apply(c Change) error {
	if c.Kind == KindGPU {
		return l.removeGPU(c.Of)
	}
	i := slices.IndexFunc(l.ports, func(p *Port) bool { return p.Name == c.Of })
	if i < 0 {
		var names []string
		for _, p := range l.ports {
			names = append(names, p.Name)
		}
		return noSuch(c.Of, "NIC", names)
	}
	p := l.ports[i]
	if c.removes() {
		return l.removeNIC(p)
	}
	im := p.desc.Link.Up
	var after []func() error
	for _, x := range c.Set {
		key, value := x[0], x[1]
		switch {
		case c.Kind == KindNIC:
			change, err := nicChange(key, value)
			if err == nil && key == "reset" && p.asksReset() == nil {
				err = fmt.Errorf("%s: virtio-net cannot ask for a reset: the device status is QEMU's, and vhost-user has no "+
					"message for it", c.Of)
			}
			if err != nil {
				return err
			}
			after = append(after, func() error { return change(l, p) })
		case c.Kind == KindLink && key == "state":
			after = append(after, func() error { p.setCarrier(value == "up"); return nil })
		default:
			if err := SetLink(&im, key, value); err != nil {
				return err
			}
		}
	}
	if err := CheckLink(&im); err != nil {
		return err
	}
	if err := l.impair(p, im); err != nil {
		return err
	}
	for _, f := range after {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// nicKeys are what nicChange knows.
var nicKeys = []string{"p2p", "interrupt", "completions", "exhaust", "reset", "tokens"}

// doChange has a port, or its guest, do something; changing is held.
type doChange func(l *Lab, p *Port) error

// nicChange reads what a NIC is to do, and gives what has a port do it.
func nicChange(key, value string) (doChange, error) {
	wrong := func(want string) (doChange, error) {
		return nil, fmt.Errorf("%s is %s: %s", key, value, want)
	}
	does := func(f func(l *Lab, p *Port)) (doChange, error) {
		return func(l *Lab, p *Port) error { f(l, p); return nil }, nil
	}
	switch key {
	case "p2p":
		if value != "on" && value != "off" {
			return wrong("on or off")
		}
		return does(func(_ *Lab, p *Port) { p.NIC().SetP2P(value == "on") })
	case "interrupt":
		if value != "lost" {
			return wrong("lost")
		}
		return does(func(_ *Lab, p *Port) { p.NIC().LoseInterrupt() })
	case "completions":
		d, err := ParseTime(value, nic.MaxCompletionDelay)
		if err != nil {
			return wrong(err.Error() + "; 0 ends it")
		}
		return does(func(l *Lab, p *Port) {
			p.completions = d
			p.NIC().DelayCompletions(longer(d, l.clock.Scale()))
		})
	case "exhaust":
		d, err := ParseTime(value, nic.MaxExhaustion)
		if err != nil {
			return wrong(err.Error() + "; 0 ends it")
		}
		return does(func(l *Lab, p *Port) { p.NIC().Exhaust(longer(d, max(l.clock.Scale(), 1))) })
	case "reset":
		if value != "ask" {
			return wrong("ask")
		}
		return does(func(_ *Lab, p *Port) { p.asksReset()() })
	case "tokens":
		d, err := ParseTime(value, MaxLateTokens)
		if err != nil {
			return wrong(err.Error() + "; 0 ends it")
		}
		return func(l *Lab, p *Port) error { return l.lateTokens(p, d) }, nil
	}
	return nil, fmt.Errorf("a nic has no %q: it has %s", key, strings.Join(nicKeys, ", "))
}

// asksReset gives what has the NIC ask its driver to reset it; nil: it cannot.
func (p *Port) asksReset() func() {
	if d, ok := p.dev.(interface{ AskReset() }); ok {
		return d.AskReset
	}
	return nil
}

// setCarrier takes the port's link down, or up again. A gVNIC tells its guest.
func (p *Port) setCarrier(up bool) {
	if d, ok := p.dev.(interface{ SetLink(up bool) }); ok {
		d.SetLink(up)
		return
	}
	p.NIC().SetCarrier(up)
}

// impair has a port's link do something else to what the port sends, at the lab's scale. changing is held.
func (l *Lab) impair(p *Port, im wire.Impairment) error {
	if err := p.NIC().Link().Impair(scaled(im, l.clock.Scale()), p.desc.Link.Down); err != nil {
		return err
	}
	p.desc.Link.Up = im
	return nil
}

// scaled is what a link does where it is so many times slower than it says; 0: without its rate and its delay.
func scaled(im wire.Impairment, scale float64) wire.Impairment {
	if scale == 0 {
		im.Rate, im.Limit, im.Delay, im.Jitter = 0, 0, 0, 0
		return im
	}
	im.Rate /= scale
	im.Delay, im.Jitter = longer(im.Delay, scale), longer(im.Jitter, scale)
	return im
}

// longer is a time at a scale; whoever waits for so long has a bound of its own.
func longer(d time.Duration, scale float64) time.Duration {
	return time.Duration(min(float64(d)*scale, float64(wire.MaxDelay)))
}

// SetScale has all links be so many times slower than they say, with delays as many times longer, those of completions
// too; 0: there are neither rates nor delays.
func (l *Lab) SetScale(scale float64) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.clock.SetScale(scale)
	var errs []error
	for _, p := range l.ports {
		if im := p.desc.Link.Up; im.Rate > 0 || im.Delay > 0 || im.Jitter > 0 {
			errs = append(errs, l.impair(p, im))
		}
		p.NIC().DelayCompletions(longer(p.completions, scale))
	}
	return errors.Join(errs...)
}

// Event is a change at a time, from the beginning of what the lab is for, at scale 1.
type Event struct {
	At time.Duration
	Change
}

// Told says that the event took place, or why it did not.
func (e Event) Told(err error) string {
	s := fmt.Sprintf("at %v: %v", e.At, e.Change)
	if err != nil {
		s += ": " + err.Error()
	}
	return s
}

// MaxEvents is how many a lab file has at most.
const MaxEvents = 1000

// Play makes changes at their times, which are as many times longer as links are slower, until all are made or ctx
// ends. tell is told of each as it is made, and why it could not be.
func (l *Lab) Play(ctx context.Context, events []Event, tell func(Event, error)) {
	start, scale := time.Now(), max(l.clock.Scale(), 1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	inOrder := slices.SortedStableFunc(slices.Values(events), func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	for _, e := range inOrder {
		at := time.Duration(min(float64(e.At)*scale, math.MaxInt64/2))
		timer.Reset(time.Until(start.Add(at)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		tell(e, l.Apply(e.Change))
	}
}
