// Package diagnosis explains a program's mistake, for implementations of package devmem: for example which mistake
// makes a connection stall, or why a binding's id is wrong. The table in mistakes.go lists the usual mistakes, and
// the list in docs/mistakes.md is written from it.
package diagnosis

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/devmem"
)

// Connection has facts about a connection.
type Connection struct {
	Op            string // the call that waits: recv, read, send, write, completion; "" for Steering
	Local, Remote netip.AddrPort
	Idle          time.Duration // since the last progress; 0 for Steering
	Received      uint64        // bytes, in host and device memory
	Queue         int           // by which it receives; -1: unknown

	Unacked    uint64 // bytes not acknowledged; with the kernel's TCP, bytes not yet sent are included
	Sends      int    // calls of SendDevmem that are not complete
	Window     int64  // the peer's receive window, in bytes; -1: unknown
	Unanswered int    // retransmissions or probes since the last progress
	Heard      bool   // a packet of the peer came since the last progress
	Alive      bool   // a packet of the peer came in the second half of the stall; false if unknown
	Asked      bool   // our end sent probes or data in the second half of the stall; false if unknown
}

// Device is the configuration of the connection's device.
type Device struct {
	Bindings []Binding
	Rules    []devmem.Flow
	Holders  []Holder // connections that hold tokens
}

// Binding is a binding that is not done (devmem.Binding.Done).
type Binding struct {
	devmem.BindingStats
	Buffer devmem.Buffer
	Queues []int
}

// Stats returns the counters of bindings.
func Stats(all []Binding) (list []devmem.BindingStats) {
	for _, b := range all {
		list = append(list, b.BindingStats)
	}
	return list
}

// Holder is a connection that holds tokens of a binding.
type Holder = devmem.Holder

type situation struct {
	Connection
	device   Device
	receives bool
	rule     devmem.Flow // of the connection's flow, if steered
	steered  bool
	queues   []int    // of open receive bindings
	dry      *Binding // a receive binding of the rule's queue, or without a rule the connection's, if isDry; nil: none
}

// Stall returns a sentence about the likely mistake that makes a connection stall.
func Stall(c Connection, d Device) string {
	s := d.situation(c)
	elsewhere := s.receives && c.Received > 0 && c.Queue >= 0 && !slices.Contains(s.queues, c.Queue)
	return s.sentence(func(m *mistake) bool { return !m.steering || elsewhere })
}

// Steering returns a sentence that explains why a connection's payload arrives in host memory; "": no
// mistake in the table explains it.
func (d Device) Steering(c Connection) string {
	return d.situation(c).sentence(func(m *mistake) bool { return m.steering })
}

func (d Device) situation(c Connection) *situation {
	s := &situation{Connection: c, device: d, receives: c.Op == "recv" || c.Op == "read"}
	s.rule, s.steered = d.rule(c)
	queue := c.Queue
	if s.steered {
		queue = s.rule.Queue
	}
	for i := range d.Bindings {
		b := &d.Bindings[i]
		if !b.TX && !b.Closed {
			s.queues = append(s.queues, b.Queues...)
		}
		if s.dry == nil && !b.TX && b.isDry() && slices.Contains(b.Queues, queue) {
			s.dry = b
		}
	}
	return s
}

func (s *situation) sentence(wanted func(*mistake) bool) string {
	for i := range mistakes {
		if m := &mistakes[i]; m.when != nil && wanted(m) && m.when(s) {
			return s.facts().Replace(m.Sentence)
		}
	}
	return ""
}

func (s *situation) facts() *strings.Replacer {
	words := []string{"{peer}", s.Remote.String(), "{host}", s.Local.String(), "{bytes}", fmt.Sprint(s.Unacked),
		"{retransmissions}", times(s.Unanswered, "retransmission"), "{sends}", times(s.Sends, "send"),
		"{queue}", fmt.Sprint(s.rule.Queue)}
	came := ""
	if s.Queue >= 0 {
		came = fmt.Sprintf(": the flow came by queue %d", s.Queue)
	}
	bound, are := "one of queues "+Numbers(s.queues), "are"
	if len(s.queues) == 1 {
		bound, are = "queue "+Numbers(s.queues), "is"
	}
	target := "; bound is " + bound
	if len(s.queues) == 0 {
		target = "; nothing is bound"
	}
	words = append(words, "{came}", came, "{bound}", bound+", which "+are+" bound", "{; bound}", target)
	if b := s.dry; b != nil {
		pool := "the pool is empty"
		if left := b.Pages - b.Held; left > 0 {
			pool = fmt.Sprintf("the pool is as good as empty, with %d", left)
		}
		words = append(words, "{held}", fmt.Sprint(b.Held), "{pages}", fmt.Sprint(b.Pages), "{binding}", fmt.Sprint(b.ID),
			"{pool}", pool+s.device.holders(b.ID, s.Connection))
	}
	return strings.NewReplacer(words...)
}

// fewPages: with fewer free pages, a pool may lack room for a NIC's largest packet, of 64 KiB.
const fewPages = 17

func (b *Binding) isDry() bool {
	return b.Held > 0 && (b.Pages-b.Held < fewPages || 4*b.Held >= 3*b.Pages)
}

const maxHolders = 4

func (d Device) holders(binding uint32, c Connection) string {
	var hs []Holder
	for _, h := range d.Holders {
		if h.Binding == binding && h.Tokens > 0 {
			hs = append(hs, h)
		}
	}
	slices.SortStableFunc(hs, func(a, b Holder) int { return cmp.Compare(b.Tokens, a.Tokens) })
	var words []string
	for i, h := range hs {
		if i == maxHolders {
			words = append(words, fmt.Sprintf("%d others", len(hs)-i))
			break
		}
		who := fmt.Sprintf("%v from %v", h.Local, h.Remote)
		if h.Local == c.Local && h.Remote == c.Remote {
			who = "this connection"
		}
		words = append(words, fmt.Sprintf("%s: %d", who, h.Tokens))
	}
	if words == nil {
		return ""
	}
	return "; tokens of " + strings.Join(words, ", ")
}

func (d Device) rule(c Connection) (found devmem.Flow, ok bool) {
	best := -1
	for _, r := range d.Rules {
		if n, matches := Matches(r, c.Remote, c.Local); matches && n > best {
			found, ok, best = r, true, n
		}
	}
	return found, ok
}

// Matches reports whether a rule matches packets from src to dst, and if so, how many fields it compares.
func Matches(r devmem.Flow, src, dst netip.AddrPort) (fields int, ok bool) {
	for _, x := range []struct{ rule, packet netip.AddrPort }{{r.Src, src}, {r.Dst, dst}} {
		if a := x.rule.Addr(); a.IsValid() && !a.IsUnspecified() {
			if a.Unmap().WithZone("") != x.packet.Addr().Unmap().WithZone("") {
				return 0, false
			}
			fields++
		}
		if p := x.rule.Port(); p != 0 {
			if p != x.packet.Port() {
				return 0, false
			}
			fields++
		}
	}
	return fields, true
}

func times(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
