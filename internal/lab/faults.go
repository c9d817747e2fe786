package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// Fault is a setting of a running lab, or an action on it, such as the removal of a NIC or a GPU.
type Fault struct {
	Kind, Key string
	Example   string
	Help      string // the effect, without a full stop
	Flag      string // the unit of the value in the help of the flag named Key; "": there is no such flag
	// Value returns a Value that reads and sets the fault's part of im; nil: the fault is no impairment.
	Value func(im *wire.Impairment) Value
	parse func(value string) (change, error)
	// asks is set if the change that parse returns may fail.
	asks bool
	// unable returns the reason why a port does not support the fault, or nil. The field is nil if all ports do, or if
	// only the change finds out.
	unable func(p *Port) error
}

// change applies a fault to a port. The caller holds Lab.changing.
type change func(l *Lab, p *Port) error

// Kinds of faults.
const (
	KindLink = "link"
	KindNIC  = "nic"
	KindGPU  = "gpu"
)

// removal is the key that removes a NIC or a GPU from its guest.
const removal = "remove"

// faults lists all faults. An impairment that tc-netem has too has the name from tc-netem.
var faults = []Fault{
	{Kind: KindLink, Key: "state", Example: "down",
		Help:  "no carrier, in both directions; a gVNIC tells its guest; state=up ends it",
		parse: oneOf(func(_ *Lab, p *Port, word string) { p.setCarrier(word == "up") }, "up", "down")},
	{Kind: KindLink, Key: "loss", Example: "1%", Flag: "part",
		Help:  "fraction of the segments that are lost, at random",
		Value: func(im *wire.Impairment) Value { return (*fraction)(&im.Loss) }},
	{Kind: KindLink, Key: "gemodel", Example: "0.1%/20%",
		Help:  "losses in bursts: P/R[/1-H[/1-K]] of tc-netem's gemodel; 1-H is 100% unless given, 1-K is 0%",
		Value: func(im *wire.Impairment) Value { return (*burst)(&im.Burst) }},
	{Kind: KindLink, Key: "drop", Example: "100,101",
		Help:  "numbers of segments of each TCP connection, from 0, that are lost when they are first sent",
		Value: func(im *wire.Impairment) Value { return (*segments)(&im.Drop) }},
	{Kind: KindLink, Key: "reorder", Example: "1%", Flag: "part",
		Help:  "fraction of the segments that wait until 1 to 3 others have overtaken them, 10 ms at most",
		Value: func(im *wire.Impairment) Value { return (*fraction)(&im.Reorder) }},
	{Kind: KindLink, Key: "duplicate", Example: "1%", Flag: "part",
		Help:  "fraction of the segments that arrive twice",
		Value: func(im *wire.Impairment) Value { return (*fraction)(&im.Duplicate) }},
	{Kind: KindLink, Key: "corrupt", Example: "0.1%", Flag: "part",
		Help:  "fraction of the segments in which one bit is flipped; checksums detect it",
		Value: func(im *wire.Impairment) Value { return (*fraction)(&im.Corrupt) }},
	{Kind: KindLink, Key: "ecn", Example: "on",
		Help:  "mark segments instead of losing them, where their sender supports ECN (RFC 3168)",
		Value: func(im *wire.Impairment) Value { return (*onOff)(&im.ECN) }},
	{Kind: KindLink, Key: "delay", Example: "10ms", Flag: "duration",
		Help:  "time that each packet is under way; none overtakes another",
		Value: func(im *wire.Impairment) Value { return (*duration)(&im.Delay) }},
	{Kind: KindLink, Key: "jitter", Example: "1ms", Flag: "duration",
		Help:  "how much the delay varies at random, up or down",
		Value: func(im *wire.Impairment) Value { return (*duration)(&im.Jitter) }},
	{Kind: KindLink, Key: "rate", Example: "1Gbit",
		Help:  "rate of a queue that drops what does not fit (a NIC's rate makes its guest wait instead)",
		Value: func(im *wire.Impairment) Value { return (*queueRate)(im) }},
	{Kind: KindLink, Key: "limit", Example: "256K", Help: "bytes that the queue of rate holds (default 1M)",
		Value: func(im *wire.Impairment) Value { return (*queueLimit)(im) }},
	{Kind: KindNIC, Key: "p2p", Example: "off",
		Help:  "it does not reach GPUs, and payload goes through host memory; p2p=on ends it",
		parse: oneOf(func(_ *Lab, p *Port, word string) { p.NIC().SetP2P(word == "on") }, "on", "off")},
	{Kind: KindNIC, Key: "interrupt", Example: "lost",
		Help:  "the next interrupt that it would raise for a queue is lost; the one after it is not",
		parse: oneOf(func(_ *Lab, p *Port, _ string) { p.NIC().LoseInterrupt() }, "lost")},
	{Kind: KindNIC, Key: "completions", Example: "5ms",
		Help: "it reports sent frames to its driver so much later, 1s at most; 0 ends it",
		parse: upTo(nic.MaxCompletionDelay, func(l *Lab, p *Port, d time.Duration) error {
			p.completions = d
			p.NIC().DelayCompletions(longer(d, l.clock.Scale()))
			return nil
		})},
	{Kind: KindNIC, Key: "exhaust", Example: "200ms",
		Help: "it takes no receive buffers for so long, 10s at most; 0 ends it",
		parse: upTo(nic.MaxExhaustion, func(l *Lab, p *Port, d time.Duration) error {
			p.NIC().Exhaust(longer(d, max(l.clock.Scale(), 1)))
			return nil
		})},
	{Kind: KindNIC, Key: "reset", Example: "ask",
		Help:   "a gVNIC asks its driver to reset it, as after a hardware error; its connections to GPUs end",
		parse:  oneOf(func(_ *Lab, p *Port, _ string) { p.dev.(resetter).AskReset() }, "ask"),
		unable: (*Port).noReset},
	{Kind: KindNIC, Key: "tokens", Example: "200ms",
		Help:  "receivers at it return devmem tokens so much later (vnic run), 10s at most; 0 ends it",
		parse: upTo(MaxLateTokens, (*Lab).lateTokens), asks: true},
	{Kind: KindNIC, Key: removal,
		Help: "its guest is asked to let go of it, then it is unplugged (virtio, with hotplug: true in the file)"},
	{Kind: KindGPU, Key: removal, Help: "the same, of GPU memory that is a PCI device"},
}

// oneOf returns a parser for a value that must be one of words. The parser's change calls do with the value.
func oneOf(do func(l *Lab, p *Port, word string), words ...string) func(value string) (change, error) {
	return func(value string) (change, error) {
		if !slices.Contains(words, value) {
			return nil, errors.New(strings.Join(words, " or "))
		}
		return func(l *Lab, p *Port) error { do(l, p, value); return nil }, nil
	}
}

// upTo returns a parser for a time from 0 to most. The parser's change calls do with the time.
func upTo(most time.Duration, do func(*Lab, *Port, time.Duration) error) func(value string) (change, error) {
	return func(value string) (change, error) {
		d, err := ParseTime(value, most)
		if err != nil {
			return nil, fmt.Errorf("%w; 0 ends it", err)
		}
		return func(l *Lab, p *Port) error { return do(l, p, d) }, nil
	}
}

// Faults returns all faults, grouped by kind.
func Faults() []Fault { return slices.Clone(faults) }

// Impairments returns the faults that are impairments.
func Impairments() []Fault {
	return slices.DeleteFunc(Faults(), func(f Fault) bool { return f.Value == nil })
}

// Words returns the fault's key with the example value, as in ParseChange; of a removal the key alone.
func (f *Fault) Words() string { return strings.TrimSuffix(f.Key+"="+f.Example, "=") }

// Text returns the value of the impairment in im as Set reads it; "": the impairment is off. The fault must be an
// impairment.
func (f *Fault) Text(im *wire.Impairment) string {
	text := f.Value(im).String()
	if text == f.Value(new(wire.Impairment)).String() {
		return ""
	}
	return text
}

func lookUp(kind, key string) (*Fault, error) {
	var keys []string
	for i := range faults {
		if f := &faults[i]; f.Kind == kind {
			if f.Key == key {
				return f, nil
			}
			keys = append(keys, f.Key)
		}
	}
	return nil, fmt.Errorf("a %s has no %q: it has %s", kind, key, strings.Join(keys, ", "))
}

// set stores value in im if the fault is an impairment, and else returns the change. The fault must be no removal.
func (f *Fault) set(im *wire.Impairment, value string) (do change, err error) {
	if f.Value != nil {
		err = f.Value(im).Set(value)
	} else {
		do, err = f.parse(value)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is %s: %w", f.Key, value, err)
	}
	return do, nil
}

// Set stores a value in im if the fault is an impairment, and else only checks the value. The fault must be no
// removal.
func (f *Fault) Set(im *wire.Impairment, value string) error {
	_, err := f.set(im, value)
	return err
}

// CheckLink checks the parts of an impairment that are faults. An error is a *FieldError.
func CheckLink(im *wire.Impairment) error {
	for _, f := range Impairments() {
		if text := f.Text(im); text != "" {
			if err := f.Value(new(wire.Impairment)).Set(text); err != nil {
				return &FieldError{Part: partLinks, Key: f.Key, Value: text, Text: err.Error()}
			}
		}
	}
	if im.Limit != 0 && im.Rate == 0 {
		return &FieldError{Part: partLinks, Key: "limit", Text: "of a queue, which a link with a rate has: say rate, too"}
	}
	return nil
}

// Change is a change of a running lab.
type Change struct {
	Kind string
	Of   string      // name of a NIC, also for a link, or of a GPU, as a.nic0 or a.gpu0
	Set  [][2]string // keys and values; the value of a removal is ""
}

func (c *Change) removes() bool {
	return slices.ContainsFunc(c.Set, func(x [2]string) bool { return x[0] == removal })
}

// ParseChange parses a change, as "link a.nic0 loss=1% state=down", "nic a.nic0 p2p=off" or "gpu
// a.gpu0 remove", and checks the values. Apply checks the name.
func ParseChange(s string) (c Change, err error) {
	words := strings.Fields(s)
	if len(words) < 3 {
		return c, errors.New("not a change, as link a.nic0 loss=1%, or nic a.nic0 p2p=off")
	}
	c.Kind, c.Of = words[0], words[1]
	if !slices.ContainsFunc(faults, func(f Fault) bool { return f.Kind == c.Kind }) {
		return c, fmt.Errorf("%s: a link, a nic or a gpu, as link a.nic0 loss=1%%, nic a.nic0 p2p=off, or gpu a.gpu0 remove",
			c.Kind)
	}
	for _, w := range words[2:] {
		key, value, ok := strings.Cut(w, "=")
		f, err := lookUp(c.Kind, key)
		switch {
		case err == nil && key == removal && (ok || len(words) > 3):
			return c, fmt.Errorf("%s: it has no value, and nothing else is set, as what is removed does nothing any more", w)
		case err == nil && key == removal:
		case !ok:
			return c, fmt.Errorf("%s: a word, = and a value, as loss=1%%", w)
		case err != nil:
			return c, err
		default:
			if err := f.Set(new(wire.Impairment), value); err != nil {
				return c, err
			}
		}
		c.Set = append(c.Set, [2]string{key, value})
	}
	return c, nil
}

// String returns the change in ParseChange's syntax.
func (c Change) String() string {
	s := c.Kind + " " + c.Of
	for _, x := range c.Set {
		if s += " " + x[0]; x[0] != removal {
			s += "=" + x[1]
		}
	}
	return s
}

// OnApply makes Apply call f after each change that succeeded; if f is nil, Apply calls nothing. f must not block, and
// must not change the lab.
func (l *Lab) OnApply(f func(Change)) { l.applied.Store(&f) }

// Apply makes a change, or nothing of it if there is an error. A removal may still be in progress when Apply returns.
func (l *Lab) Apply(c Change) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if err := l.apply(c); err != nil {
		return err
	}
	l.opt.Log.Info("changed", "what", c.String())
	if f := l.applied.Load(); f != nil && *f != nil {
		(*f)(c)
	}
	return nil
}

// apply is Apply without the log and the function of OnApply. The caller holds changing.
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
	var asked, after []change
	for _, x := range c.Set {
		f, err := lookUp(c.Kind, x[0])
		if err != nil {
			return err
		}
		do, err := f.set(&im, x[1])
		if err == nil && f.unable != nil {
			err = f.unable(p)
		}
		if err != nil {
			return err
		}
		switch {
		case do == nil:
		case f.asks:
			asked = []change{do} // replaces an earlier value of the same key, so that at most one change can fail
		default:
			after = append(after, do)
		}
	}
	if err := CheckLink(&im); err != nil {
		return err
	}
	if err := l.impair(p, im); err != nil {
		return err
	}
	for _, do := range slices.Concat(asked, after) { // asked runs first: if its change fails, nothing is changed
		if err := do(l, p); err != nil {
			return err
		}
	}
	return nil
}

// resetter is a device that can ask its driver to reset it.
type resetter interface{ AskReset() }

// noReset returns the reason why the NIC cannot ask its driver for a reset; nil: it can.
func (p *Port) noReset() error {
	if _, ok := p.dev.(resetter); !ok {
		return fmt.Errorf("%s: virtio-net cannot ask for a reset: the device status is QEMU's, and vhost-user has no "+
			"message for it", p.Name)
	}
	return nil
}

// setCarrier takes the port's link down, or up again.
func (p *Port) setCarrier(up bool) {
	if d, ok := p.dev.(interface{ SetLink(up bool) }); ok {
		d.SetLink(up)
		return
	}
	p.NIC().SetCarrier(up)
}

// impair sets the impairment of frames that a port sends to im, which is at scale 1. The caller holds changing.
func (l *Lab) impair(p *Port, im wire.Impairment) error {
	if err := p.NIC().Link().Impair(scaled(im, l.clock.Scale()), p.desc.Link.Down); err != nil {
		return err
	}
	p.desc.Link.Up = im
	return nil
}

// scaled returns the impairment of a link that is slower by the factor scale; for scale 0, without rate and delay.
func scaled(im wire.Impairment, scale float64) wire.Impairment {
	if scale == 0 {
		im.Rate, im.Limit, im.Delay, im.Jitter = 0, 0, 0, 0
		return im
	}
	im.Rate /= scale
	im.Delay, im.Jitter = longer(im.Delay, scale), longer(im.Jitter, scale)
	return im
}

// longer returns a time multiplied by scale, but at most wire.MaxDelay.
func longer(d time.Duration, scale float64) time.Duration {
	return time.Duration(min(float64(d)*scale, float64(wire.MaxDelay)))
}

// SetScale changes the lab's scale, which divides the rates of links and memories, and multiplies the delays of links
// and completions; with scale 0 there are neither rates nor delays. The times of faults exhaust and tokens that were
// set before stay.
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

// Event is a change and its time, from the call of Play, at scale 1.
type Event struct {
	At time.Duration
	Change
}

// Told returns a line for the user: the event, and err if it is not nil.
func (e Event) Told(err error) string {
	s := fmt.Sprintf("at %v: %v", e.At, e.Change)
	if err != nil {
		s += ": " + err.Error()
	}
	return s
}

// MaxEvents is the maximum number of events in a lab file.
const MaxEvents = 1000

// Play applies events at their times, until the last one or until ctx ends. It multiplies the times by the scale that
// the lab has at the call, if that is above 1. It calls tell after each event, with Apply's error.
func (l *Lab) Play(ctx context.Context, events []Event, tell func(Event, error)) {
	start, scale := time.Now(), max(l.clock.Scale(), 1)
	inOrder := slices.SortedStableFunc(slices.Values(events), func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	for _, e := range inOrder {
		when := time.Duration(min(float64(e.At)*scale, math.MaxInt64/2))
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(start.Add(when))):
		}
		tell(e, l.Apply(e.Change))
	}
}
