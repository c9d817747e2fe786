package run

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"vnic.dev/vnic/internal/testkit"
)

// call makes a connection.
func call(t *testing.T) (ours, theirs halfCloser) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	a := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
	b := testkit.Must(l.Accept())(t)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a.(halfCloser), b.(halfCloser)
}

// Two that are at the same step have each other's word, whoever comes first; of two verdicts each hears the other's.
func TestPeersGoTogether(t *testing.T) {
	testkit.LeavesNothing(t)
	x, y := call(t)
	a, b := newPeer(x, "b", time.Minute, new(atomic.Bool)), newPeer(y, "a", time.Minute, new(atomic.Bool))
	said := make(chan string, 3)
	go func() {
		_, err := b.greet(t.Context(), hello{Guest: "b"})
		said <- fmt.Sprint(err)
		s, err := b.meet(t.Context(), "one", "b's")
		said <- fmt.Sprint(s, err)
		v, err := b.conclude(t.Context(), verdict{Text: "\x1b[2Jbad\nworse"})
		said <- fmt.Sprint(v, err)
		b.close(nil)
	}()
	testkit.Equal(t, "guest", testkit.Must(a.greet(t.Context(), hello{Guest: "a"}))(t).Guest, "b")
	testkit.Equal(t, "step", testkit.Must(a.meet(t.Context(), "one", "a's"))(t), "b's")
	v := testkit.Must(a.conclude(t.Context(), verdict{OK: true}))(t)
	testkit.Equal(t, "verdict", v, verdict{Text: "?[2Jbad; worse"})
	a.close(nil)
	for _, want := range []string{"<nil>", "a's<nil>", "{true }<nil>"} {
		if got := strings.ReplaceAll(<-said, " <nil>", "<nil>"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Whatever a peer says, or leaves out, ends with a line that says so, and another peer goes on.
//
// Invariant: run: What another host says is bounded.
func TestHostilePeers(t *testing.T) {
	testkit.LeavesNothing(t)
	steps := new(bytes.Buffer)
	for i := range maxSteps + 1 {
		fmt.Fprintf(steps, "{\"say\":\"step\",\"step\":\"%d\"}\n", i)
	}
	for _, c := range []struct{ name, say, want string }{
		{"no JSON", "GET / HTTP/1.1\n", "makes no sense: invalid character 'G'"},
		{"other words", `{"say":"\u001b[2Jboo"}` + "\n", `makes no sense: "\x1b[2Jboo", which nobody says`},
		{"half a hello", `{"say":"hello"}` + "\n", "which nobody says"},
		{"a verdict without one", `{"say":"verdict"}` + "\n", "which nobody says"},
		{"two verdicts", strings.Repeat(`{"say":"verdict","verdict":{"ok":true}}`+"\n", 2), "it says something twice"},
		{"a step twice", strings.Repeat(`{"say":"step","step":"a"}`+"\n", 2), "it says something twice"},
		{"many steps", steps.String(), "it is far ahead"},
		{"without an end", strings.Repeat("x", maxMessage+1), "more than 4194304 bytes at once"},
		{"an end", `{"say":"end","text":"\u001b]0;x\u0007` + strings.Repeat("y", 1000) + `"}` + "\n",
			"the host of guest b ended: ?]0;x?yyy"},
		{"nothing", "", "nothing has come from the host of guest b for 300ms"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			x, y := call(t)
			silence := time.Minute
			if c.say == "" {
				silence = 300 * time.Millisecond
			}
			p, told := newPeer(x, "b", silence, new(atomic.Bool)), make(chan error, 2)
			p.watch(func(err error) { told <- err })
			go func() { _, _ = y.Write([]byte(c.say)) }()
			err := <-told
			testkit.ErrorSays(t, err, c.want)
			if len(err.Error()) > 2*maxText || strings.ContainsAny(err.Error(), "\x1b\x07\n") {
				t.Errorf("%q", err)
			}
			if _, err := p.meet(t.Context(), "z", ""); err == nil {
				t.Error("it goes on")
			}
			testkit.OK(t, y.Close())
			p.close(nil)
		})
	}
}

// A slow host waits long for a fast one, which does not for it.
func TestSlowHostIsHeardByAFastOne(t *testing.T) {
	for silence, want := range map[time.Duration]time.Duration{
		time.Second: time.Second / 10, time.Hour: 2 * time.Second,
	} {
		testkit.Equal(t, silence.String(), makePeer(nil, "b", silence, new(atomic.Bool)).beat(), want)
	}
}

// Whatever lines come, what is kept of them is bounded, and what is shown printable.
func FuzzPeer(f *testing.F) {
	f.Add([]byte(`{"say":"hello","hello":{"guest":"b"}}` + "\n" + `{"say":"step","step":"x","data":"y"}` + "\n" +
		`{"say":"verdict","verdict":{"text":"\u001b"}}` + "\n" + `{"say":"heard"}` + "\n" + `{"say":"end","text":"z"}`))
	f.Add([]byte(`{"say":"` + strings.Repeat("\x1b", 99) + `"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := makePeer(nil, "b", time.Minute, new(atomic.Bool))
		ours := hello{Protocol: protocol, Guest: "a", Lab: "one\ntwo", Settings: [][2]string{{"--seed", "7"}}}
		for line := range bytes.SplitSeq(b, []byte("\n")) {
			err := p.hear(line)
			select {
			case h := <-p.hello:
				if err == nil {
					err = ours.differs(&h)
				}
			case v := <-p.verdict:
				if err == nil {
					err = errors.New(v.Text)
				}
			default:
			}
			if err != nil && (len(err.Error()) > 5*maxText || strings.ContainsFunc(err.Error(), unicode.IsControl)) {
				t.Errorf("%q", err)
			}
		}
		if len(p.steps) > maxSteps {
			t.Errorf("%d steps", len(p.steps))
		}
	})
}

// A peer that hangs up is gone, and one that is slow, but alive, is not.
func TestPeerHangsUp(t *testing.T) {
	testkit.LeavesNothing(t)
	x, y := call(t)
	p := newPeer(x, "b", 400*time.Millisecond, new(atomic.Bool))
	lines := bufio.NewScanner(y)
	for i := range 3 * 10 { // as many signs of life as it gives in three times that time
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		if i%4 == 0 {
			testkit.Must(y.Write([]byte(`{"say":"alive"}` + "\n")))(t)
		}
	}
	select {
	case <-p.gone:
		t.Fatal(p.err)
	default:
	}
	testkit.OK(t, y.Close())
	testkit.ErrorSays(t, testkit.Err(p.meet(t.Context(), "a", "")), "the host of guest b hung up before the end")
	p.close(nil)
}

// Another version of the protocol is another vnic.
func TestHelloOfAnotherVersion(t *testing.T) {
	h := hello{Protocol: protocol, Guest: "a"}
	testkit.ErrorSays(t, h.differs(&hello{Protocol: protocol + 1, Guest: "b"}), "another version of vnic")
	testkit.ErrorSays(t, h.differs(&hello{Protocol: protocol, Guest: "a"}), "the other host runs guest a, too")
	testkit.OK(t, h.differs(&hello{Protocol: protocol, Guest: "b"}))
}
