// Package diagnosis says in words what a program did wrong, to whoever implements package devmem: which mistake makes
// a connection stall, which binding a wrong id was meant to be, why nobody answers a connect. It knows the usual
// mistakes of devmem programs (docs/mistakes.md), judges facts that the implementation has collected, and asks nobody.
//
// It runs where a call fails, never for a packet. What it costs is bounded by what the device has open: bindings,
// rules, and at most maxHolders connections that it names.
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

// Connection is what an implementation knows of a connection.
type Connection struct {
	Op            string // of the call that waits: recv, read, send, write, completion
	Local, Remote netip.AddrPort
	Idle          time.Duration // without progress
	Received      uint64        // bytes, wherever they lie
	Queue         int           // by which its payload came last; -1: not known, or none came

	Unacked    uint64 // bytes that were sent and not acknowledged
	Sends      int    // calls of SendDevmem that are not complete
	Window     int64  // the peer's, in bytes; -1: not known
	Unanswered int    // retransmissions and probes since it stalled
	Heard      bool   // anything of the peer since it stalled, acknowledgements too
	Alive      bool   // likewise, in the later half of that time: a peer may have ended since it stalled
	Asked      bool   // the peer was probed in that half, if it was sent nothing else
}

// Device is the configuration that the connection runs with.
type Device struct {
	Bindings []Binding
	Rules    []devmem.Flow
	Holders  []Holder // connections with tokens
}

// Binding is a binding, and the receive queues that it has.
type Binding struct {
	devmem.BindingStats
	Queues []int
}

// Holder is a connection that holds tokens of a binding.
type Holder = devmem.Holder

// Stall names the likely mistake of a connection that makes no progress.
func Stall(c Connection, d Device) string {
	peer := c.Remote.String()
	receives := c.Op == "recv" || c.Op == "read"
	if receives {
		if s := d.dry(c); s != "" {
			return s
		}
		if c.Received > 0 && c.Queue >= 0 && !d.bound(c.Queue) {
			if s := d.Steering(c); s != "" {
				return s
			}
		}
	}
	switch {
	case c.Op == "completion" && c.Sends == 0 && c.Unacked == 0:
		return "no send is under way: nothing will complete (count the calls of SendDevmem that queued a byte)"
	case !receives && c.Window == 0:
		return fmt.Sprintf("the window of peer %s is 0: its program does not receive", peer)
	case c.Unacked > 0 && !c.Heard:
		return fmt.Sprintf("peer %s does not answer: %s of %d bytes in vain: its program or its guest has ended or is "+
			"stopped, or its pool is empty as its tokens are not returned (DontNeed)", peer,
			times(c.Unanswered, "retransmission"), c.Unacked)
	case c.Unacked > 0:
		return fmt.Sprintf("peer %s answers, and does not acknowledge %d bytes after %s: its pool is empty as its tokens "+
			"are not returned (DontNeed), or the link loses them", peer, c.Unacked, times(c.Unanswered, "retransmission"))
	case !receives && c.Sends > 0:
		return fmt.Sprintf("all is acknowledged, and our NIC has not let go of the memory of %s", times(c.Sends, "send"))
	case c.Asked && !c.Alive:
		return fmt.Sprintf("peer %s is gone: it does not answer probes: its program or its guest has ended or is stopped",
			peer)
	case c.Alive:
		return fmt.Sprintf("peer %s answers, and its program sends nothing: it hangs, or waits for something itself", peer)
	}
	return fmt.Sprintf("nothing came from peer %s", peer)
}

// fewPages are too few for the largest packets that a NIC may give: 64 KiB.
const fewPages = 17

// dry says that the pool which the connection's payload comes to is empty, and who has its pages.
func (d Device) dry(c Connection) string {
	queue := c.Queue
	if r, ok := d.rule(c); ok {
		queue = r.Queue
	}
	for _, b := range d.Bindings {
		if b.TX || b.Held == 0 || !slices.Contains(b.Queues, queue) {
			continue
		}
		left := b.Pages - b.Held
		if left >= fewPages && 4*b.Held < 3*b.Pages {
			continue
		}
		state := "the pool is empty"
		if left > 0 {
			state = fmt.Sprintf("the pool is as good as empty, with %d", left)
		}
		return fmt.Sprintf("%d of %d pages of binding %d are held by tokens that were not returned (DontNeed): %s%s", b.Held,
			b.Pages, b.ID, state, d.by(b.ID, c))
	}
	return ""
}

// maxHolders is how many connections are named.
const maxHolders = 4

// by says who holds the tokens of a binding.
func (d Device) by(binding uint32, c Connection) string {
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

// Steering says why the payload of a connection comes in host memory; "": nothing is bound, or it does not.
func (d Device) Steering(c Connection) string {
	came := ""
	if c.Queue >= 0 {
		came = fmt.Sprintf(": the flow came by queue %d", c.Queue)
	}
	r, steered := d.rule(c)
	open := d.open()
	switch {
	case steered && !d.bound(r.Queue):
		return fmt.Sprintf("the rule for tcp dst %v leads to queue %d, which has no binding (BindRX)%s", c.Local, r.Queue,
			boundTo(open))
	case len(open) == 0:
		return "no queue is bound to device memory (BindRX)" + came
	case !steered:
		return fmt.Sprintf("no flow rule leads tcp dst %v to %s%s (AddFlow)", c.Local, boundQueues(open), came)
	case c.Queue >= 0 && c.Queue != r.Queue:
		return fmt.Sprintf("the rule leads to queue %d, which is bound%s: it was added after that, or another is stronger",
			r.Queue, came)
	}
	return ""
}

// rule finds the rule of a flow, the most particular one.
func (d Device) rule(c Connection) (found devmem.Flow, ok bool) {
	best := -1
	for _, r := range d.Rules {
		src, n := matches(r.Src, c.Remote)
		dst, m := matches(r.Dst, c.Local)
		if src && dst && n+m > best {
			found, ok, best = r, true, n+m
		}
	}
	return found, ok
}

// matches compares the fields of a rule that are set, and says how many these are.
func matches(rule, packet netip.AddrPort) (ok bool, fields int) {
	if a := rule.Addr(); a.IsValid() && !a.IsUnspecified() {
		if a.Unmap().WithZone("") != packet.Addr().Unmap().WithZone("") {
			return false, 0
		}
		fields++
	}
	if rule.Port() != 0 {
		if rule.Port() != packet.Port() {
			return false, 0
		}
		fields++
	}
	return true, fields
}

// open are the receive bindings with queues.
func (d Device) open() (open []Binding) {
	for _, b := range d.Bindings {
		if !b.TX && !b.Closed && len(b.Queues) > 0 {
			open = append(open, b)
		}
	}
	return open
}

func (d Device) bound(queue int) bool {
	return slices.ContainsFunc(d.open(), func(b Binding) bool { return slices.Contains(b.Queues, queue) })
}

func boundTo(open []Binding) string {
	if len(open) == 0 {
		return "; nothing is bound"
	}
	names, _ := queuesOf(open)
	return "; bound is " + names
}

// boundQueues is "queue 3, which is bound" or "one of queues 2, 3, which are bound".
func boundQueues(open []Binding) string {
	names, n := queuesOf(open)
	if n == 1 {
		return names + ", which is bound"
	}
	return names + ", which are bound"
}

// queuesOf is "queue 3" or "one of queues 2, 3", and how many there are.
func queuesOf(open []Binding) (names string, n int) {
	var queues []string
	for _, b := range open {
		for _, q := range b.Queues {
			queues = append(queues, fmt.Sprint(q))
		}
	}
	if len(queues) == 1 {
		return "queue " + queues[0], 1
	}
	return "one of queues " + strings.Join(queues, ", "), len(queues)
}

func times(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
