package stat

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
)

// observed makes events of what a port's driver sets up: a nic.Observer.
type observed struct {
	port   string
	events *events
	maps   *gpuMaps
	look   func() // at what the port has posted, soon
}

var _ nic.Observer = (*observed)(nil)

// Changed implements nic.Observer.
func (o *observed) Changed(was, is *control.State) {
	if was.Generation != is.Generation {
		o.say("reset", "the device is as new: it was reset, or has another driver")
		o.maps.forget(o.port, -1)
		return
	}
	defer o.look()
	rule := func(r *control.FlowRule) uint32 { return r.ID }
	for _, r := range added(was.Rules, is.Rules, rule) {
		o.say("rule", "rule %d: %s goes to queue %d", r.ID, ruleText(&r), r.Queue)
	}
	for _, r := range added(is.Rules, was.Rules, rule) {
		o.say("rule", "rule %d is gone: %s", r.ID, ruleText(&r))
	}
	binding := func(b *control.Binding) uint32 { return b.ID }
	for _, b := range added(was.Bindings, is.Bindings, binding) {
		o.say("binding", "binding %d: %s", b.ID, bindingText(is, &b))
		o.unbound(&b)
	}
	for _, b := range added(is.Bindings, was.Bindings, binding) {
		o.say("binding", "binding %d is gone: %s", b.ID, bindingText(was, &b))
		o.unbound(&b)
	}
	for i, s := range is.Splits {
		if i < len(was.Splits) && was.Splits[i].On != s.On {
			what := "headers are not split from payload any more"
			if s.On {
				what = "headers are split from payload"
			}
			o.say("split", "queue %d: %s", s.Queue, what)
		}
	}
}

// added gives what only the second of two lists has, by ID, by which both are sorted (control.State). The caller holds
// a lock of the port: each element is looked at once or twice.
func added[T any](was, is []T, id func(*T) uint32) (list []T) {
	k := 0
	for i := range is {
		n := id(&is[i])
		for k < len(was) && id(&was[k]) < n {
			k++
		}
		if k == len(was) || id(&was[k]) != n {
			list = append(list, is[i])
		}
	}
	return list
}

// unbound forgets what the queues of a binding had posted.
func (o *observed) unbound(b *control.Binding) {
	for _, q := range b.Queues {
		o.maps.forget(o.port, int(q))
	}
}

// DeviceQueue implements nic.Observer.
func (o *observed) DeviceQueue(queue int, on bool) {
	o.maps.forget(o.port, queue)
	if on {
		defer o.look()
		o.say("binding", "queue %d has buffers in GPU memory", queue)
	} else {
		o.say("binding", "queue %d has buffers in host memory", queue)
	}
}

func (o *observed) say(kind, format string, args ...any) {
	o.events.add(Event{Port: o.port, Kind: kind, Text: fmt.Sprintf(format, args...)})
}

// ruleText says which packets a rule takes.
func ruleText(r *control.FlowRule) string {
	proto := fmt.Sprintf("ip %d", r.Proto)
	switch r.Proto {
	case splitter.ProtoTCP:
		proto = "tcp"
	case splitter.ProtoUDP:
		proto = "udp"
	}
	end := func(a netip.Addr, port uint16) string {
		switch {
		case r.HasSPI() && a.IsValid(), a.IsValid() && port == 0:
			return a.String()
		case r.HasSPI() || !a.IsValid() && port == 0:
			return ""
		case !a.IsValid():
			return fmt.Sprintf("port %d", port)
		}
		return netip.AddrPortFrom(a, port).String()
	}
	words := []string{proto}
	if from := end(r.Src, r.SrcPort); from != "" {
		words = append(words, "from "+from)
	}
	if to := end(r.Dst, r.DstPort); to != "" {
		words = append(words, "to "+to)
	}
	if r.HasSPI() && r.SPI() != 0 {
		words = append(words, fmt.Sprintf("SPI %#x", r.SPI()))
	}
	return strings.Join(words, " ")
}

// bindingText says what a binding binds.
func bindingText(s *control.State, b *control.Binding) string {
	what := "memory"
	for _, f := range s.Buffers {
		if f.ID == b.Buffer {
			what = fmt.Sprintf("%s of GPU %d at %#x", humanize.IBytes(f.Size), f.GPU, f.Off)
		}
	}
	if b.Tx {
		return what + " for transmit"
	}
	var queues []int
	for _, q := range b.Queues {
		queues = append(queues, int(q))
	}
	return what + " for receive queue " + numbers(queues)
}

// observe has events be made of what happens in a lab, until stop is called.
func (l *pageLab) observe(e *events) (stop func()) {
	k := newLooker(&l.maps)
	l.looker = k
	for _, p := range l.lab.Ports() {
		p.NIC().Observe(&observed{port: p.Name, events: e, maps: &l.maps, look: func() { k.ask(p) }})
	}
	l.lab.OnApply(func(c lab.Change) { e.add(Event{Port: c.Of, Kind: "fault", Text: c.String()}) })
	return func() {
		l.lab.OnApply(nil)
		for _, p := range l.lab.Ports() {
			p.NIC().Observe(nil)
		}
		k.stop()
	}
}
