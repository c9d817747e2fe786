// Package diagnosis explains a program's mistake, for implementations of package devmem: which
// mistake makes a connection stall, which binding a wrong id meant, why nobody answers a connect.
// It has the usual mistakes of devmem programs (docs/mistakes.md), and judges only facts that the
// implementation has collected.
//
// It runs when a call fails, never for a packet. Its cost is bounded by the device's open objects:
// bindings, rules, and at most maxHolders connections that it names.
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

// Connection has an implementation's facts about a connection.
type Connection struct {
	Op            string // of the call that waits: recv, read, send, write, completion
	Local, Remote netip.AddrPort
	Idle          time.Duration // without progress
	Received      uint64        // bytes, in any memory
	Queue         int           // the queue that its last payload came through; -1: unknown, or none came

	Unacked    uint64 // bytes that were sent and not acknowledged
	Sends      int    // calls of SendDevmem that are not complete
	Window     int64  // the peer's, in bytes; -1: not known
	Unanswered int    // retransmissions and probes since the stall began
	Heard      bool   // a packet of the peer came since the stall began, including acknowledgments
	Alive      bool   // the same in the second half of that time: a peer may have ended since the stall began
	Asked      bool   // the peer was probed in that half, if nothing else was sent to it
}

// Device is the configuration that the connection runs with.
type Device struct {
	Bindings []Binding
	Rules    []devmem.Flow
	Holders  []Holder // connections with tokens
}

// Binding is a binding and its receive queues.
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

// fewPages are not enough for the largest packets that a NIC may deliver: 64 KiB.
const fewPages = 17

// dry returns a message if the pool for the connection's payload is empty, with the holders of its
// pages.
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

// maxHolders is how many connections a message names.
const maxHolders = 4

// by names the holders of a binding's tokens.
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

// Steering explains why a connection's payload comes in host memory; "": nothing is bound, or it
// does not.
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

// rule returns the rule of a flow; of several the most specific one.
func (d Device) rule(c Connection) (found devmem.Flow, ok bool) {
	best := -1
	for _, r := range d.Rules {
		if n, matches := Matches(r, c.Remote, c.Local); matches && n > best {
			found, ok, best = r, true, n
		}
	}
	return found, ok
}

// Matches reports whether a rule matches the packets from src to dst, and with how many fields.
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

// open returns the open receive bindings with queues.
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

// boundQueues returns "queue 3, which is bound" or "one of queues 2, 3, which are bound".
func boundQueues(open []Binding) string {
	names, n := queuesOf(open)
	if n == 1 {
		return names + ", which is bound"
	}
	return names + ", which are bound"
}

// queuesOf returns "queue 3" or "one of queues 2, 3", and the number of queues.
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
