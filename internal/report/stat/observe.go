package stat

import (
	"fmt"
	"net/netip"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
)

// observed is a port's observer. For changes that the port's driver makes it adds events, deletes records of maps, and
// calls look.
type observed struct {
	port   string
	events *events
	maps   *gpuMaps
	look   func()
}

var _ nic.Observer = (*observed)(nil)

// Changed implements nic.Observer.
func (o *observed) Changed(before, now *control.State) {
	if before.Generation != now.Generation {
		o.say("reset", "the device is as new: it was reset, or has another driver")
		o.maps.forget(o.port, -1)
		return
	}
	defer o.look()
	rule := func(r *control.FlowRule) uint32 { return r.ID }
	for _, r := range added(before.Rules, now.Rules, rule) {
		o.say("rule", "rule %d: %s goes to queue %d", r.ID, ruleText(&r), r.Queue)
	}
	for _, r := range added(now.Rules, before.Rules, rule) {
		o.say("rule", "rule %d is gone: %s", r.ID, ruleText(&r))
	}
	binding := func(b *control.Binding) uint32 { return b.ID }
	for _, b := range added(before.Bindings, now.Bindings, binding) {
		o.say("binding", "binding %d: %s", b.ID, bindingText(now, &b))
		o.unbound(&b)
	}
	for _, b := range added(now.Bindings, before.Bindings, binding) {
		o.say("binding", "binding %d is gone: %s", b.ID, bindingText(before, &b))
		o.unbound(&b)
	}
	for i, s := range now.Splits {
		if i < len(before.Splits) && before.Splits[i].On != s.On {
			what := "headers are not split from payload any more"
			if s.On {
				what = "headers are split from payload"
			}
			o.say("split", "queue %d: %s", s.Queue, what)
		}
	}
}

// added returns the elements of now with IDs that before lacks. Both lists are sorted by ID (control.State). added
// takes linear time, as the caller holds a lock of the port.
func added[T any](before, now []T, id func(*T) uint32) (list []T) {
	k := 0
	for i := range now {
		n := id(&now[i])
		for k < len(before) && id(&before[k]) < n {
			k++
		}
		if k == len(before) || id(&before[k]) != n {
			list = append(list, now[i])
		}
	}
	return list
}

func (o *observed) unbound(b *control.Binding) {
	for _, q := range b.Queues {
		o.maps.forget(o.port, int(q))
	}
}

// DeviceQueue implements nic.Observer.
func (o *observed) DeviceQueue(queue int, on bool) {
	o.maps.forget(o.port, queue)
	memory := "host"
	if on {
		defer o.look()
		memory = "GPU"
	}
	o.say("binding", "queue %d has buffers in %s memory", queue, memory)
}

func (o *observed) say(kind, format string, args ...any) {
	o.events.add(Event{Port: o.port, Kind: kind, Text: fmt.Sprintf(format, args...)})
}

func ruleText(r *control.FlowRule) string {
	text := protoName(r.Proto)
	end := func(word string, a netip.Addr, port uint16) {
		switch {
		case a.IsValid() && (r.HasSPI() || port == 0):
			text += word + a.String()
		case a.IsValid():
			text += word + netip.AddrPortFrom(a, port).String()
		case port != 0 && !r.HasSPI():
			text += fmt.Sprintf("%sport %d", word, port)
		}
	}
	end(" from ", r.Src, r.SrcPort)
	end(" to ", r.Dst, r.DstPort)
	if r.HasSPI() && r.SPI() != 0 {
		text += fmt.Sprintf(" SPI %#x", r.SPI())
	}
	return text
}

func protoName(number uint8) string {
	switch number {
	case splitter.ProtoTCP:
		return "tcp"
	case splitter.ProtoUDP:
		return "udp"
	}
	return fmt.Sprintf("ip %d", number)
}

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
	return what + " for receive queue " + numbers(b.Queues)
}
