package stat

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
)

// observed is a nic.Observer: it makes an event of each thing that a port's driver sets up or removes.
type observed struct {
	port   string
	events *events
	maps   *gpuMaps
	look   func() // makes a looker look at the port's rings
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

// added returns the elements that only the second of two lists has. Both are sorted by ID (control.State). The caller
// holds a lock of the port: each element is looked at once or twice.
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

// unbound drops what the queues of a binding had posted.
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

// ruleText names the packets that a rule steers.
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

// bindingText names the memory and the queues of a binding.
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
