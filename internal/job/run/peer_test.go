package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"vnic.dev/vnic/internal/jsonlines"
	"vnic.dev/vnic/internal/testkit"
)

func call(t *testing.T) (ours, theirs halfCloser) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	a := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
	b := testkit.Must(l.Accept())(t)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a.(halfCloser), b.(halfCloser)
}

// Peers at the same step get each other's text, and at the end each other's verdict.
func TestPeersGoTogether(t *testing.T) {
	testkit.LeavesNothing(t)
	x, y := call(t)
	a, b := newPeer(x, "b", time.Minute, new(atomic.Bool)), newPeer(y, "a", time.Minute, new(atomic.Bool))
	results := make(chan string, 3)
	go func() {
		_, err := b.greet(t.Context(), hello{Guest: "b"})
		results <- fmt.Sprint(err)
		s, err := b.meet(t.Context(), "one", "b's")
		results <- fmt.Sprint(s, err)
		v, err := b.conclude(t.Context(), verdict{Text: "\x1b[2Jbad\nworse"})
		results <- fmt.Sprint(v, err)
		b.close(nil)
	}()
	testkit.Equal(t, "guest", testkit.Must(a.greet(t.Context(), hello{Guest: "a"}))(t).Guest, "b")
	testkit.Equal(t, "step", testkit.Must(a.meet(t.Context(), "one", "a's"))(t), "b's")
	v := testkit.Must(a.conclude(t.Context(), verdict{OK: true}))(t)
	testkit.Equal(t, "verdict", v, verdict{Text: "?[2Jbad; worse"})
	a.close(nil)
	for _, want := range []string{"<nil>", "a's<nil>", "{true }<nil>"} {
		if got := strings.ReplaceAll(<-results, " <nil>", "<nil>"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// greeting is a first message that has the version, but is a sign of life, and no hello.
const greeting = `{"event":"alive","hello":{"protocol":2,"vnic":"v"}}` + "\n"

// A wrong or missing message, or one that ends the run, ends the connection with an error that says so.
//
// Invariant: run: Memory and error messages that another host's messages cause are bounded.
func TestHostilePeers(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	steps := new(bytes.Buffer)
	for i := range maxSteps + 1 {
		fmt.Fprintf(steps, "{\"event\":\"step\",\"op\":\"%d\",\"args\":\"\"}\n", i)
	}
	for _, c := range []struct{ name, say, want string }{
		{"no JSON", "GET / HTTP/1.1\n", "makes no sense: invalid character 'G'"},
		{"other words", greeting + `{"event":"\u001b[2Jboo"}` + "\n", `makes no sense: "\x1b[2Jboo", which nobody says`},
		{"no event", greeting + "{}\n", `makes no sense: this is no message`},
		{"half a hello", `{"event":"hello","hello":{"protocol":2}}` + "\n", "half a hello"},
		{"a verdict without one", greeting + `{"event":"verdict"}` + "\n", "half a verdict"},
		{"two verdicts", greeting + strings.Repeat(`{"event":"verdict","args":{"ok":true}}`+"\n", 2),
			"it says something twice"},
		{"a step twice", greeting + strings.Repeat(`{"event":"step","op":"a","args":""}`+"\n", 2), "it says something twice"},
		{"many steps", greeting + steps.String(), "it is far ahead"},
		{"without an end", strings.Repeat("x", maxMessage+1), "more than 4194304 bytes at once"},
		{"an end", greeting + `{"event":"end","args":"\u001b]0;x\u0007` + strings.Repeat("y", 1000) + `"}` + "\n",
			"the host of guest b ended: ?]0;x?yyy"},
		{"another version",
			`{"event":"alive","hello":{"protocol":3,"vnic":"\u001b` + strings.Repeat("y", 1000) + `"}}` + "\n",
			`the host of guest b is of vnic \x1byyy`},
		{"nothing", "", "nothing has come from the host of guest b for 300ms"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			x, y := call(t)
			silence := time.Minute
			if c.say == "" {
				silence = 300 * time.Millisecond
			}
			p, reported := newPeer(x, "b", silence, new(atomic.Bool)), make(chan error, 2)
			p.watch(func(err error) { reported <- err })
			go func() { _, _ = y.Write([]byte(c.say)) }()
			err := <-reported
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

// A slow host, with a long timeout of its own, must not seem dead to a fast one.
func TestSlowHostIsHeardByAFastOne(t *testing.T) {
	for silence, want := range map[time.Duration]time.Duration{
		time.Second: time.Second / 10, time.Hour: 2 * time.Second,
	} {
		testkit.Equal(t, silence.String(), makePeer(nil, "b", silence, new(atomic.Bool)).beat(), want)
	}
}

// At most maxSteps messages of a peer are kept, and errors are short and have no control characters.
func FuzzPeer(f *testing.F) {
	f.Add([]byte(`{"event":"hello","args":{"guest":"b"},"hello":{"protocol":2}}` + "\n" +
		`{"event":"step","op":"x","args":"y"}` + "\n" + `{"event":"verdict","args":{"text":"\u001b"}}` + "\n" +
		`{"event":"heard","args":true}` + "\n" + `{"event":"end","args":"z"}`))
	f.Add([]byte(`{"event":"` + strings.Repeat("\x1b", 99) + `","hello":{"protocol":2}}`))
	f.Add([]byte(`{"say":"hello","hello":{"protocol":1,"guest":"b"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := makePeer(nil, "b", time.Minute, new(atomic.Bool))
		ours := hello{Guest: "a", Lab: "one\ntwo", Settings: [][2]string{{"--seed", "7"}}}
		check := func(err error) {
			if err != nil && (len(err.Error()) > 5*maxText || strings.ContainsFunc(err.Error(), unicode.IsControl)) {
				t.Errorf("%q", err)
			}
		}
		in := jsonlines.NewReader(bytes.NewReader(b), p.protocol())
		for range len(b) + 1 {
			if m, err := in.Next(); err == nil {
				check(p.hear(m))
			} else {
				check(p.broken(err))
			}
		}
		if len(p.received) > maxSteps {
			t.Errorf("%d steps", len(p.received))
		}
		var h hello
		if json.Unmarshal(p.received["hello "], &h) == nil {
			check(ours.differs(&h))
		}
	})
}

// A slow peer that sends signs of life stays connected until it hangs up.
func TestPeerHangsUp(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	x, y := call(t)
	p := newPeer(x, "b", 400*time.Millisecond, new(atomic.Bool))
	lines := bufio.NewScanner(y)
	for i := range 3 * 10 { // ten signs of life in each of three times silence
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		if i%4 == 0 {
			testkit.Must(y.Write([]byte(greeting)))(t)
		}
	}
	select {
	case <-p.Done():
		t.Fatal(p.Err())
	default:
	}
	testkit.OK(t, y.Close())
	testkit.ErrorSays(t, testkit.Err(p.meet(t.Context(), "a", "")), "the host of guest b hung up before the end")
	p.close(nil)
}

// Another protocol version is refused; hello-780d5150.jsonl is a first message of version 1. A host of the
// same protocol is accepted, whatever its vnic version.
//
// Invariant: run: A host of another protocol is refused by one line that names both versions.
func TestHostOfAnotherVnicIsRefused(t *testing.T) {
	testkit.LeavesNothing(t)
	const ours = ", this is vnic (devel) (protocol 2): run the same vnic on both hosts"
	for line, want := range map[string]string{
		string(testkit.Must(os.ReadFile("testdata/hello-780d5150.jsonl"))(t)):              "is of an older vnic (protocol 1)" + ours,
		`{"event":"hello","args":{"guest":"b"},"hello":{"protocol":3,"vnic":"v9"}}` + "\n": "is of vnic v9 (protocol 3)" + ours,
		`{"event":"hello","args":{"guest":"b"},"hello":{"protocol":2,"vnic":"v9"}}` + "\n": "",
	} {
		x, y := call(t)
		p := newPeer(x, "b", time.Minute, new(atomic.Bool))
		testkit.Must(y.Write([]byte(line)))(t)
		theirs, err := p.greet(t.Context(), hello{Guest: "a", Lab: "guests: {}"})
		if want == "" {
			testkit.OK(t, err)
			testkit.Equal(t, "guest", theirs.Guest, "b")
		} else if err == nil || err.Error() != "the host of guest b "+want {
			t.Errorf("%v, not %s", err, want)
		}
		var old struct { // the message type of vnic 780d5150
			Say   string
			Hello *struct {
				Protocol         int
				Guest, Lab, Vnic string
				Settings         [][2]string
			}
			Step, Data, Text string
			Verdict          *verdict
		}
		testkit.OK(t, json.NewDecoder(y).Decode(&old))
		if old.Say != "hello" || old.Hello == nil || old.Hello.Protocol != protocol {
			t.Errorf("it hears %+v", old)
		}
		testkit.OK(t, y.Close())
		p.close(nil)
	}
}

func TestHellosOfOneGuest(t *testing.T) {
	h := hello{Guest: "a"}
	testkit.ErrorSays(t, h.differs(&hello{Guest: "a"}), "the other host runs guest a, too")
	testkit.OK(t, h.differs(&hello{Guest: "b"}))
}
