package diagnosis

import (
	"net"
	"net/netip"
	"slices"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// mistake is a row of the table: a reason for an error, for a connection without progress, or for payload in host
// memory.
type mistake struct {
	Name     string   // a heading of docs/mistakes.md, which several rows may share; "": the sentence is in a list there
	Sentence string   // of Stall or Steering, or ""; words in braces stand for facts (situation.facts)
	Errors   []string // examples of errors of calls
	Do       string   // advice for docs/mistakes.md

	steering bool                    // explains why payload comes in host memory
	when     func(s *situation) bool // whether Sentence fits; nil: a call's error shows the mistake
}

var (
	examplePeer     = netip.MustParseAddrPort("10.0.0.2:5202")
	exampleBindings = []Binding{
		{BindingStats: devmem.BindingStats{ID: 1}}, {BindingStats: devmem.BindingStats{ID: 2, TX: true}},
	}
	exampleSends = []Binding{{BindingStats: devmem.BindingStats{ID: 1, TX: true, Sends: 24}}}
)

// mistakes is the table. The first row that fits gives the sentence. Steering looks only at rows with steering; Stall
// looks at these only if payload has come by a queue that is not bound.
var mistakes = []mistake{
	{Name: "queue 0", Errors: []string{QueueZero(4) + ": " + syscall.ERANGE.Error()},
		Do: `Bind another queue. On virtio frames that cannot be split go to queue 0; on gve queue 0 is left to the kernel.`},
	{Name: "queue out of range", Errors: []string{NoQueue(4, 4) + ": " + syscall.EINVAL.Error()},
		Do: "Take a lower one. `guest.Device.Queue` is one that can be bound; in a lab file `queues` is the number of a " +
			"NIC's queues."},
	{Name: "pool too big", Errors: []string{PastEnd(16 << 20), "ends past the 0x3e80000 bytes (62 MiB) that there are"},
		Do: "Register less, or give the GPU more (`--gpu-memory`)."},
	{Name: "wrong binding id", Errors: []string{Device{Bindings: exampleBindings}.NoTXBinding(3).Error()},
		Do: "Send from the id of a binding of BindTX. Ids of other bindings give `binding 1 is for receive` or `binding 2 " +
			"is closed`."},
	{Name: "tokens never returned",
		Sentence: "{held} of {pages} pages of binding {binding} are held by tokens that were not returned (DontNeed): " +
			"{pool}",
		when: func(s *situation) bool { return s.receives && s.dry != nil },
		Do: "Return each token when its bytes are copied or used. Register more memory than the program holds at a " +
			"time."},
	{Name: "flow not steered", steering: true,
		Sentence: "the rule for tcp dst {host} leads to queue {queue}, which has no binding (BindRX){; bound}",
		when:     func(s *situation) bool { return s.steered && !slices.Contains(s.queues, s.rule.Queue) }},
	{Name: "flow not steered", steering: true,
		Sentence: "no queue is bound to device memory (BindRX){came}",
		when:     func(s *situation) bool { return len(s.queues) == 0 }},
	{Name: "flow not steered", steering: true,
		Sentence: "no flow rule leads tcp dst {host} to {bound}{came} (AddFlow)",
		when:     func(s *situation) bool { return !s.steered }},
	{Name: "flow not steered", steering: true,
		Sentence: "the rule leads to queue {queue}, which is bound{came}: it was added after that, or another is stronger",
		when:     func(s *situation) bool { return s.Queue >= 0 && s.Queue != s.rule.Queue },
		Do: "Add a rule that leads to the bound queue (AddFlow), before the peer connects. Without the rule RecvDevmem " +
			"returns bytes without fragments; `devmem.Diagnose` gives the sentence."},
	{Sentence: "no send is under way: nothing will complete (count the calls of SendDevmem that queued a byte)",
		when: func(s *situation) bool { return s.Op == "completion" && s.Sends == 0 && s.Unacked == 0 }},
	{Name: "one side hangs, and receives nothing",
		Sentence: "the window of peer {peer} is 0: its program does not receive",
		when:     func(s *situation) bool { return !s.receives && s.Window == 0 },
		Do:       "Find out what the other program waits for."},
	{Sentence: "peer {peer} does not answer: {retransmissions} of {bytes} bytes in vain: its program or its guest has " +
		"ended or is stopped, or its pool is empty as its tokens are not returned (DontNeed)",
		when: func(s *situation) bool { return s.Unacked > 0 && !s.Heard }},
	{Sentence: "peer {peer} answers, and does not acknowledge {bytes} bytes after {retransmissions}: its pool is " +
		"empty as its tokens are not returned (DontNeed), or the link loses them",
		when: func(s *situation) bool { return s.Unacked > 0 }},
	{Sentence: "all is acknowledged, and our NIC has not let go of the memory of {sends}",
		when: func(s *situation) bool { return !s.receives && s.Sends > 0 }},
	{Name: "one side crashes",
		Sentence: "peer {peer} is gone: it does not answer probes: its program or its guest has ended or is stopped",
		when:     func(s *situation) bool { return s.Asked && !s.Alive },
		Errors: []string{Ended(syscall.ECONNRESET, net.TCPAddrFromAddrPort(examplePeer)).Error(),
			"has closed after 65536 of 4194304 bytes: its program has ended"},
		Do: "Look at the other program. On virtio its TCP stack ends with it and sends nothing any more: the receiver " +
			"notices by its stall limit, or by a reset once another program has that address. Linux ends the connection of a " +
			"program that dies: by a reset, or, where the program had read everything, as if it had closed (EOF). Only the " +
			"receiving program knows whether that came too early; the third line is the test's own."},
	{Name: "one side hangs",
		Sentence: "peer {peer} answers, and its program sends nothing: it hangs, or waits for something itself",
		when:     func(s *situation) bool { return s.Alive },
		Do:       "Find out what the other program waits for: often it waits for this one."},
	{Sentence: "nothing came from peer {peer}", when: func(*situation) bool { return true }},
	{Name: "one side never connects", Errors: []string{"accept: nobody has connected to 10.0.0.1:5201"},
		Do: "Start the sender, and compare addresses and ports."},
	{Name: "nobody listens", Errors: []string{Dial(syscall.ECONNREFUSED, examplePeer).Error()},
		Do: "Start the receiver first, or dial until it listens, as `DialGuest` does."},
	{Name: "two programs on one device",
		Errors: []string{"in use: ...process 1234 (...) has it, and a device is one program's: end it, or wait for its end"},
		Do:     "End the first program; it may be killed."},
	{Name: "freed buffer in flight",
		Errors: []string{"close: " + InUse(exampleSends).Error()},
		Do: "Close the binding and wait for its Done, or read all completions, before you free the memory or write to it. " +
			"Then the peer receives what the memory held when it was sent."},
}
