package diagnosis

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

var (
	here  = netip.MustParseAddrPort("10.0.0.1:7002")
	there = netip.MustParseAddrPort("10.0.0.2:5000")
)

func rx(held int) Binding {
	return Binding{BindingStats: devmem.BindingStats{ID: 7, Pages: 100, Held: held}, Queues: []int{3}}
}

func TestStallNamesTheMistake(t *testing.T) {
	steered := []devmem.Flow{{Dst: here, Queue: 3}}
	otherHolders := func(n int) (hs []Holder) {
		for i := range n {
			hs = append(hs, Holder{Binding: 7, Local: here, Remote: netip.AddrPortFrom(there.Addr(), uint16(6000+i)),
				Tokens: 10 - i})
		}
		return hs
	}
	for _, x := range []struct {
		name string
		c    Connection
		d    Device
		want string
	}{
		{"all pages held", Connection{Op: "recv", Queue: 3}, Device{Bindings: []Binding{rx(100)},
			Holders: []Holder{{Binding: 7, Local: here, Remote: there, Tokens: 100}}},
			"100 of 100 pages of binding 7 are held by tokens that were not returned (DontNeed): the pool is empty; tokens of " +
				"this connection: 100"},
		{"by others, nothing came yet", Connection{Op: "recv", Queue: -1}, Device{Rules: steered, Bindings: []Binding{rx(90)},
			Holders: otherHolders(6)},
			"90 of 100 pages of binding 7 are held by tokens that were not returned (DontNeed): the pool is as good as empty, " +
				"with 10; tokens of 10.0.0.1:7002 from 10.0.0.2:6000: 10, 10.0.0.1:7002 from 10.0.0.2:6001: 9, " +
				"10.0.0.1:7002 from 10.0.0.2:6002: 8, 10.0.0.1:7002 from 10.0.0.2:6003: 7, 2 others"},
		{"some pages held", Connection{Op: "recv", Queue: 3, Alive: true},
			Device{Rules: steered, Bindings: []Binding{rx(50)}},
			"peer 10.0.0.2:5000 answers, and its program sends nothing"},
		{"no rule", Connection{Op: "recv", Queue: 0, Received: 1}, Device{Bindings: []Binding{rx(0)}},
			"no flow rule leads tcp dst 10.0.0.1:7002 to queue 3, which is bound: the flow came by queue 0 (AddFlow)"},
		{"a rule to another queue", Connection{Op: "read", Queue: 2, Received: 1}, Device{Bindings: []Binding{rx(0)},
			Rules: []devmem.Flow{{Dst: here, Queue: 2}}},
			"the rule for tcp dst 10.0.0.1:7002 leads to queue 2, which has no binding (BindRX); bound is queue 3"},
		{"a stronger rule", Connection{Op: "recv", Queue: 0, Received: 1}, Device{Bindings: []Binding{rx(0)}, Rules: steered},
			"the rule leads to queue 3, which is bound: the flow came by queue 0: it was added after that"},
		{"nothing bound", Connection{Op: "recv", Queue: 0, Received: 1}, Device{},
			"no queue is bound to device memory (BindRX): the flow came by queue 0"},
		{"gone", Connection{Op: "recv", Queue: 3, Asked: true, Heard: true}, Device{Bindings: []Binding{rx(0)}},
			"peer 10.0.0.2:5000 is gone: it does not answer probes"},
		{"not probed", Connection{Op: "recv", Queue: -1}, Device{}, "nothing came from peer 10.0.0.2:5000"},
		{"nobody acknowledges", Connection{Op: "send", Unacked: 5000, Unanswered: 3, Window: 100}, Device{},
			"peer 10.0.0.2:5000 does not answer: 3 retransmissions of 5000 bytes in vain"},
		{"nobody acknowledges what was sent before", Connection{Op: "recv", Unacked: 5, Unanswered: 1}, Device{},
			"peer 10.0.0.2:5000 does not answer: 1 retransmission of 5 bytes in vain"},
		{"dropped there", Connection{Op: "completion", Unacked: 5000, Unanswered: 3, Window: -1, Heard: true}, Device{},
			"peer 10.0.0.2:5000 answers, and does not acknowledge 5000 bytes after 3 retransmissions: its pool is empty"},
		{"does not receive", Connection{Op: "write", Unacked: 5000, Window: 0, Heard: true}, Device{},
			"the window of peer 10.0.0.2:5000 is 0: its program does not receive"},
		{"no send", Connection{Op: "completion", Window: 100}, Device{}, "no send is under way: nothing will complete"},
		{"with the NIC", Connection{Op: "completion", Window: 100, Sends: 2}, Device{},
			"all is acknowledged, and our NIC has not let go of the memory of 2 sends"},
	} {
		x.c.Local, x.c.Remote = here, there
		if got := Stall(x.c, x.d); !strings.HasPrefix(got, x.want) {
			t.Errorf("%s: %s\nand not: %s", x.name, got, x.want)
		}
	}
}

// The error of a wrong ID explains why it is wrong, and lists at most maxNamed of the existing IDs.
func TestIDsNameThemselves(t *testing.T) {
	var all, many Device
	for _, b := range []devmem.BindingStats{{ID: 7}, {ID: 8, TX: true}, {ID: 9, TX: true, Closed: true, Sends: 3}} {
		all.Bindings = append(all.Bindings, Binding{BindingStats: b})
	}
	for i := range 100 {
		many.Bindings = append(many.Bindings, Binding{BindingStats: devmem.BindingStats{ID: uint32(i + 1)}})
	}
	for _, c := range []struct {
		want string
		err  error
	}{
		{"binding 5: there is no such TX binding; open ones: 7 (rx), 8 (tx): invalid argument", all.NoTXBinding(5)},
		{"binding 5: there is no such TX binding; none is open: invalid argument", Device{}.NoTXBinding(5)},
		{"binding 7 is for receive, and SendDevmem wants one of BindTX; open ones: 7 (rx), 8 (tx): invalid a",
			all.NoTXBinding(7)},
		{"binding 9 is closed, with 3 sends under way: its memory is in use until Done: invalid argument",
			all.NoTXBinding(9)},
		{"16 (rx), 84 more: invalid argument", many.NoTXBinding(500)},
		{"in use by binding 8 (open), binding 9 (3 sends under way): close its bindings and wait", InUse(all.Bindings[1:])},
		{"flow 4: there is no such rule; there are 2, 3: no such file", NoFlow(4, []devmem.FlowID{3, 2})},
		{"flow 4: there is no such rule; there is none: no such file", NoFlow(4, nil)},
	} {
		if !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v\nand not: %s", c.err, c.want)
		}
	}
	if !errors.Is(all.NoTXBinding(5), syscall.EINVAL) || !errors.Is(InUse(all.Bindings), syscall.EBUSY) ||
		!errors.Is(NoFlow(1, nil), syscall.ENOENT) {
		t.Error("another errno")
	}
}

func TestErrorsOfThePeerSayWhatTheyMean(t *testing.T) {
	for err, want := range map[error]string{
		syscall.ECONNREFUSED:     "connection refused: 10.0.0.2 answers, and no program listens at its port 5000",
		syscall.EHOSTUNREACH:     "no route to host: nobody answers at 10.0.0.2",
		context.DeadlineExceeded: "deadline exceeded: 10.0.0.2:5000 neither accepts nor refuses",
		syscall.EINVAL:           "invalid argument",
	} {
		got := Dial(os.NewSyscallError("connect", err), there)
		if !errors.Is(got, err) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v\nand not: %s", got, want)
		}
	}
	for err, want := range map[error]string{
		syscall.ECONNREFUSED:     "connection refused: 10.0.0.2 answers, and no server listens at its port 5000: start it",
		syscall.EHOSTUNREACH:     "no route to host: nobody answers at 10.0.0.2: is it the server's address",
		syscall.ENETUNREACH:      "network is unreachable: nobody answers at 10.0.0.2: is it the server's address",
		syscall.ETIMEDOUT:        "connection timed out: 10.0.0.2:5000 neither accepts nor refuses: the server is stopped",
		context.DeadlineExceeded: "deadline exceeded: 10.0.0.2:5000 neither accepts nor refuses: the server is stopped",
		syscall.EINVAL:           "invalid argument",
	} {
		got := DialServer(Dial(os.NewSyscallError("connect", err), there), there)
		if !errors.Is(got, err) || !strings.Contains(got.Error(), want) || strings.Contains(got.Error(), "guest") {
			t.Errorf("%v\nand not: %s", got, want)
		}
	}
	peer := net.TCPAddrFromAddrPort(there)
	for err, want := range map[error]string{
		syscall.ECONNRESET: "connection reset by peer: the program at 10.0.0.2:5000 has ended",
		syscall.ETIMEDOUT:  "connection timed out: 10.0.0.2:5000 does not answer any more",
		syscall.EPIPE:      "broken pipe",
	} {
		if got := Ended(fmt.Errorf("recv: %w", err), peer); !errors.Is(got, err) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v\nand not: %s", got, want)
		}
	}
}

var update = flag.Bool("update", false, "write the mistakes in docs/mistakes.md anew")

// The list in docs/mistakes.md has exactly the mistakes of the table. With -update the test writes the list:
//
//	go test ./internal/diagnosis -run TestDocsHaveAllMistakes -update
func TestDocsHaveAllMistakes(t *testing.T) {
	const file = "../../docs/mistakes.md"
	const begin, end = "<!-- mistakes: written by a test -->\n", "<!-- end of mistakes -->\n"
	text := string(testkit.Must(os.ReadFile(file))(t))
	before, rest, begins := strings.Cut(text, begin)
	old, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatal("the page has no place for mistakes")
	}
	want := pageOfMistakes()
	if *update {
		testkit.OK(t, os.WriteFile(file, []byte(before+begin+want+end+after), 0o644))
	} else if old != want {
		t.Errorf("write it anew with -update: it has\n%s\nnot\n%s", old, want)
	}
}

func pageOfMistakes() string {
	pool := rx(100)
	example := Device{Bindings: []Binding{pool}, Rules: []devmem.Flow{{Dst: here, Queue: 2}}}.situation(
		Connection{Op: "recv", Local: here, Remote: examplePeer, Unacked: 65536, Unanswered: 3, Sends: 2, Queue: 3})
	example.dry = &pool
	more := strings.NewReplacer(": {pool}", "", "{came}", "...", "{; bound}", "...")
	var named, unnamed strings.Builder
	for i, m := range mistakes {
		messages := m.Errors
		if m.Sentence != "" {
			messages = append([]string{example.facts().Replace(more.Replace(m.Sentence))}, messages...)
		}
		if m.Name == "" {
			unnamed.WriteString(wrap("- "+strings.Join(messages, ""), "  "))
			continue
		}
		if i == 0 || m.Name != mistakes[i-1].Name {
			fmt.Fprintf(&named, "\n### %s\n\n", m.Name)
		}
		for _, line := range messages {
			fmt.Fprintf(&named, "    %s\n", line)
		}
		if m.Do != "" {
			named.WriteString("\n" + wrap(m.Do, ""))
		}
	}
	return named.String() + "\n## Stalls of other kinds\n\nThese sentences say themselves what to look at:\n\n" +
		unnamed.String() + "\n"
}

func wrap(text, indent string) string {
	var b strings.Builder
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > 120 {
			b.WriteString(line + "\n")
			line = indent + word
		} else if line == "" {
			line = word
		} else {
			line += " " + word
		}
	}
	return b.String() + line + "\n"
}
