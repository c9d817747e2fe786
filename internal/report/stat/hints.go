package stat

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// A flow with less payload in host memory than worthAHint gives no hint about that. For a flow with none of its payload
// in GPU memory, the minimum is worthBeside if other flows' payload at the port went to GPU memory.
const (
	worthAHint  = 64 << 10
	worthBeside = 1 << 20
	mostHints   = 8
)

// hints returns at most mostHints sentences about flows that may have a problem.
func hints(list []Flow) (out []string) {
	inGPU := map[string]bool{}
	for i := range list {
		for _, s := range list[i].RX {
			inGPU[s.Port] = inGPU[s.Port] || s.GPU() > 0 || s.Bounced > 0
		}
	}
	say := func(f *Flow, format string, args ...any) {
		if len(out) < mostHints {
			out = append(out, fmt.Sprintf("%s > %s: ", f.From, f.To)+fmt.Sprintf(format, args...))
		}
	}
	for i := range list {
		f := &list[i]
		for j := range f.RX {
			s := &f.RX[j]
			least := uint64(worthAHint)
			if inGPU[s.Port] {
				least = worthBeside
			}
			switch {
			case f.Proto != "tcp" || len(s.Bound) == 0:
			case s.GPU() == 0 && s.Bounced == 0 && s.Host >= least:
				say(f, "%s arrived, none of it in GPU memory: %s", humanize.IBytes(s.Host), whyHost(s))
			case s.GPU() > 0 && s.Host-s.Bounced >= worthAHint && s.Host-s.Bounced > s.Payload()/20:
				say(f, "%s of %s arrived in host memory: it came by queue %s; bound is queue %s", humanize.IBytes(s.Host-s.Bounced),
					humanize.IBytes(s.Payload()), numbers(s.Queues), numbers(s.Bound))
			}
			if s.Bounced > 0 {
				say(f, "%s reached GPU memory by way of host memory: its NIC and its GPU have no peer to peer",
					humanize.IBytes(s.Bounced))
			}
		}
		if !f.hasPorts() {
			continue
		}
		if len(f.TX) > 0 && f.TX[0].Window != nil && *f.TX[0].Window == 0 && f.State == "open" {
			say(f, "its receiver takes no more: its window is 0, with %s under way", humanize.IBytes(f.TX[0].InFlight))
		}
		tx, rx := total(f.TX), total(f.RX)
		if again := max(tx.Again, rx.Again); again > 0 && again > max(tx.Payload(), rx.Payload())/100 {
			say(f, "%s were sent again, or came late", humanize.IBytes(again))
		}
		for _, r := range slices.Sorted(maps.Keys(tx.Drops)) {
			say(f, "%s packets were dropped: %s", humanize.Comma(int64(tx.Drops[r])), dropMeaning(r, f.tokensHeld()))
		}
	}
	return out
}

// whyHost returns a probable reason why all payload of a flow went to host memory at a port that has queues with GPU
// memory.
func whyHost(s *FlowSide) string {
	for _, q := range s.Queues {
		if slices.Contains(s.Bound, q) {
			return fmt.Sprintf("it came by queue %s, while that was not bound, or its headers could not be split",
				numbers(s.Queues))
		}
	}
	if s.Rule != 0 {
		return fmt.Sprintf("rule %d leads it to queue %s, which is not bound; bound is queue %s", s.Rule, numbers(s.Queues),
			numbers(s.Bound))
	}
	return fmt.Sprintf("the flow was not steered (it came by queue %s; bound is queue %s)", numbers(s.Queues),
		numbers(s.Bound))
}

func numbers[N any](list []N) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", " and ")
}

var dropMeanings = map[string]string{
	"no-buffer":   ": the receiver's queue had no buffers for them",
	"link-loss":   ": the link loses as it was told to",
	"unknown-dst": ": nobody has their destination's MAC address",
	"link-queue":  ": the queue of a link with a rate was full",
	"stopped":     ": the receiver, or its queue, was not there",
}

// dropMeaning explains a reason of drops. tokens is how many tokens the flow's receivers hold; nil: unknown.
func dropMeaning(reason string, tokens *int) string {
	meaning := reason + dropMeanings[reason]
	switch {
	case reason != "no-buffer":
		return meaning
	case tokens != nil && *tokens > 0:
		return meaning + fmt.Sprintf("; %s tokens of this connection are not returned", humanize.Comma(int64(*tokens)))
	}
	return meaning + " (are tokens returned?)"
}
