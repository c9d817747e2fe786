package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"vnic.dev/vnic/internal/jsonlines"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/version"
)

func init() {
	Register("test-echo", func(_ context.Context, a json.RawMessage) (any, error) { return a, nil })
	Register("test-fail", func(context.Context, json.RawMessage) (any, error) { return nil, errors.New("as asked") })
	Register("test-big", func(context.Context, json.RawMessage) (any, error) { return strings.Repeat("x", MaxLine), nil })
	Register("test-count", func(ctx context.Context, a json.RawMessage) (any, error) {
		var n int
		if err := json.Unmarshal(a, &n); err != nil {
			return nil, err
		}
		for i := range n {
			if err := Progress(ctx, i); err != nil {
				return nil, err
			}
		}
		return EnvOf(ctx).Config.Hostname, nil
	})
	Register("test-wait", func(ctx context.Context, _ json.RawMessage) (any, error) {
		if err := Progress(ctx, "waiting"); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
}

func client(t *testing.T) (*Client, net.Conn) {
	ignore := goleak.IgnoreCurrent()
	host, guest := net.Pipe()
	c := NewClient(host)
	t.Cleanup(func() {
		_, _ = guest.Close(), c.Close()
		goleak.VerifyNone(t, ignore)
	})
	return c, guest
}

func link(t *testing.T) (c *Client, served <-chan error) {
	t.Helper()
	c, guest := client(t)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		err := WriteEvent(guest, EventBoot, nil)
		if err == nil {
			err = Serve(ctx, guest, Env{Config: Config{Hostname: "h"}})
		}
		_ = guest.Close()
		done <- err
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		_ = c.Close()
		for range done {
		}
	})
	<-c.Booted()
	return c, done
}

func TestCallsAreAnswered(t *testing.T) {
	c, served := link(t)
	var out struct{ A []int }
	if err := c.Call(t.Context(), "test-echo", map[string]any{"a": []int{1, 2}}, &out); err != nil || len(out.A) != 2 {
		t.Errorf("%+v, %v", out, err)
	}
	var remote *RemoteError
	if err := c.Call(t.Context(), "test-fail", nil, nil); !errors.As(err, &remote) || remote.Text != "as asked" ||
		remote.Op != "test-fail" {
		t.Errorf("got %v", err)
	}
	if err := c.Call(t.Context(), "test-none", nil, nil); !errors.As(err, &remote) {
		t.Errorf("got %v", err)
	}
	if err := c.Call(t.Context(), "test-big", nil, nil); !errors.As(err, &remote) ||
		!strings.Contains(remote.Text, "too long") {
		t.Errorf("a reply that is too long: %v", err)
	}
	testkit.ErrorIs(t, c.Call(t.Context(), "test-echo", strings.Repeat("x", maxRequest), nil), jsonlines.ErrTooLong)
	var h Hello
	if err := c.Call(t.Context(), "hello", nil, &h); err != nil || h.Kernel == "" || h.CPUs < 1 {
		t.Errorf("%+v, %v", h, err)
	}
	testkit.OK(t, c.Call(t.Context(), "poweroff", nil, nil))
	testkit.OK(t, <-served)
	<-c.Done()
	testkit.ErrorIs(t, c.Call(t.Context(), "hello", nil, nil), ErrClosed)
}

func TestEndOfAProgramIsReported(t *testing.T) {
	c, _ := link(t)
	for script, want := range map[string]ExecResult{
		"cat; echo e >&2; exit 3": {Status: 3, Stdout: "in", Stderr: "e\n"},
		"kill -9 $$":              {Status: -1},
		`head -c 300000 /dev/zero | tr "\0" x; printf y`: {Stdout: strings.Repeat("x", execOutput-1) + "y"},
		`head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; printf y`: {
			Stdout: strings.Repeat("\x00", maxText/6-1) + "y", Stderr: strings.Repeat("\x00", maxText/6-1)},
	} {
		got, err := Run.Call(t.Context(), c, Exec{Args: []string{"sh", "-c", script}, Stdin: "in"})
		testkit.NoError(t, err)
		if got != want {
			t.Errorf("%s: %d, %.20q, %q", script, got.Status, got.Stdout, got.Stderr)
		}
	}
	testkit.ErrorSays(t, testkit.Err(Run.Call(t.Context(), c, Exec{})), "exec: no program named")
	testkit.ErrorSays(t, testkit.Err(Run.Call(t.Context(), c, Exec{Args: []string{"/no/such"}})),
		"exec: fork/exec /no/such: no such file or directory")
	testkit.ErrorSays(t, c.Call(t.Context(), "exec", []int{1}, nil), "exec: json: cannot unmarshal array")
}

func TestOwnAppletsAreNoTools(t *testing.T) {
	for name, status := range map[string]int{"zap": 3, "vnic-own": 4, "add": 5} {
		RegisterApplet(name, func([]string) int { return status })
	}
	testkit.Equal(t, "tools", strings.Join(Tools(), " "), "add zap")
	if run, ok := LookupApplet("vnic-own"); !ok || run(nil) != 4 {
		t.Error("vnic-own is not found")
	}
	if _, ok := LookupApplet("vnic-none"); ok {
		t.Error("vnic-none is found")
	}
}

func TestProgressComesInOrder(t *testing.T) {
	c, _ := link(t)
	var got []string
	var name string
	err := c.CallProgress(t.Context(), "test-count", 5, &name, func(p json.RawMessage) { got = append(got, string(p)) })
	if err != nil || strings.Join(got, " ") != "0 1 2 3 4" || name != "h" {
		t.Errorf("%q, %q, %v", got, name, err)
	}
}

func TestCancelReachesTheGuest(t *testing.T) {
	c, _ := link(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := c.CallProgress(ctx, "test-wait", nil, nil, func(json.RawMessage) { cancel() })
	testkit.ErrorIs(t, err, context.Canceled)
	if err := c.Call(t.Context(), "test-echo", 1, nil); err != nil {
		t.Error(err)
	}
}

func TestPowerOffEndsOperations(t *testing.T) {
	c, served := link(t)
	waiting, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.CallProgress(t.Context(), "test-wait", nil, nil, func(json.RawMessage) { close(waiting) })
	}()
	<-waiting
	testkit.OK(t, c.Call(t.Context(), "poweroff", nil, nil))
	testkit.OK(t, <-served)
	if err := <-ended; err == nil {
		t.Error("the operation was not ended")
	}
}

func TestGuestThatDoesNotReadDoesNotBlockItsHost(t *testing.T) {
	c, _ := client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	testkit.ErrorIs(t, c.Call(ctx, "hello", nil, nil), context.DeadlineExceeded)
}

func TestWhatIsNoMessageIsDropped(t *testing.T) {
	c, guest := client(t)
	text := "\n\r\nnoise\n{\"half\":\n[]\n{}\n" + strings.Repeat("y", MaxLine+10) + "\n" +
		`{"id":7,"ok":1,"hello":{"protocol":2}}` + "\n" + `{"id":1,"event":"unknown"}` + "\n{\"event\":\"boot\"}\r\n{\"event\":\"boot\"}\n"
	testkit.Must(io.WriteString(guest, text))(t)
	<-c.Booted()
	testkit.Equal(t, "lines dropped", c.Dropped(), 5)
	_ = guest.Close()
	<-c.Done()
	testkit.ErrorIs(t, c.Err(), ErrClosed)
}

func TestDeathOfTheAgentEndsCalls(t *testing.T) {
	for want, args := range map[string]any{
		"guest agent ended (exit status 2)\n\tpanic: x": Panic{Status: "exit status 2", Output: "panic: x"},
		"guest agent ended (unknown)\n\t":               []int{1},
	} {
		c, guest := client(t)
		go func() {
			b := make([]byte, 1000)
			_, _ = guest.Read(b)
			_, _ = io.WriteString(guest, `{"id":1,"o`)
			_ = WriteEvent(guest, EventPanic, args)
			_ = guest.Close()
		}()
		err := c.Call(t.Context(), "hello", nil, nil)
		var p *PanicError
		if !errors.As(err, &p) || p.Error() != want {
			t.Errorf("got %v", err)
		}
	}
}

func TestIDOfARunningRequestIsRefused(t *testing.T) {
	host, guest := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), guest, Env{}) }()
	answers := bufio.NewScanner(host)
	for _, c := range [][2]string{
		{`{"id":1,"op":"test-wait","hello":{"protocol":2}}`, `"progress":"waiting"`},
		{`{"id":1,"op":"test-echo"}`, `"error":"request 1 is already running"`},
		{`{"id":1,"cancel":true}`, `"error":"context canceled"`},
		{`{"id":1,"op":"test-echo","args":7}`, `{"id":1,"ok":7}`},
		{`{"id":2,"op":"poweroff"}`, `{"id":2,"ok":null}`},
	} {
		testkit.Must(fmt.Fprintln(host, c[0]))(t)
		if answers.Scan(); !strings.Contains(answers.Text(), c[1]) {
			t.Fatalf("%s: %s", c[0], answers.Text())
		}
	}
	testkit.OK(t, <-served)
	_, _ = host.Close(), guest.Close()
}

// The file boot-780d5150.jsonl has the output of the init of vnic's commit 780d5150, which sends no version.
//
// Invariant: guests: An agent of another protocol is refused by one line that names the host's
// version, and the agent's if it sends one.
func TestAgentOfAnotherVnicIsRefused(t *testing.T) {
	this := ", this is vnic " + version.String() + " (protocol 2): build the guest's image with this vnic"
	for line, want := range map[string]string{
		string(testkit.Must(os.ReadFile("testdata/boot-780d5150.jsonl"))(t)): "is of an older vnic, which does not say its version",
		`{"event":"boot","hello":{"protocol":3,"vnic":"v9"}}` + "\n":         "is of vnic v9 (protocol 3)",
		`{"event":"boot","hello":{"protocol":2,"vnic":"v9"}}` + "\n":         "",
	} {
		c, guest := client(t)
		testkit.Must(io.WriteString(guest, line))(t)
		if want == "" {
			<-c.Booted()
			testkit.OK(t, c.Err())
			continue
		}
		<-c.Done()
		testkit.Equal(t, "refusal", c.Err().Error(), "the guest's agent "+want+this)
		select {
		case <-c.Booted():
			t.Error("it has booted")
		default:
		}
		testkit.ErrorIs(t, c.Call(t.Context(), "hello", nil, nil), c.Err())
	}
}

// An agent refuses a request while maxRunning operations run, and serves requests again when they have ended.
func TestRequestsAtATimeAreBounded(t *testing.T) {
	c, _ := link(t)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	waiting := make(chan struct{}, maxRunning)
	for range maxRunning {
		work.Go(func() {
			_ = c.CallProgress(ctx, "test-wait", nil, nil, func(json.RawMessage) { waiting <- struct{}{} })
		})
	}
	for range maxRunning {
		<-waiting
	}
	testkit.ErrorSays(t, c.Call(t.Context(), "test-echo", 1, nil), "1024 requests are already running")
	cancel()
	work.Wait()
	testkit.Eventually(t, "one is carried out again",
		func() bool { return c.Call(t.Context(), "test-echo", 1, nil) == nil })
}

func TestHostOfAnotherVnicIsRefused(t *testing.T) {
	for hello, want := range map[string]string{
		``:                                    "the host is of an older vnic, which does not say its version, this is vnic ",
		`,"hello":{"protocol":3,"vnic":"v9"}`: "the host is of vnic v9 (protocol 3), this is vnic ",
		`,"hello":{"protocol":2,"vnic":"v9"}`: "",
	} {
		host, guest := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- Serve(t.Context(), guest, Env{}) }()
		answers := bufio.NewScanner(host)
		for id, op := range []string{"test-echo", "test-echo", "poweroff"} {
			testkit.Must(fmt.Fprintf(host, `{"id":%d,"op":%q%s}`+"\n", id+1, op, hello))(t)
			answers.Scan()
			var m jsonlines.Message
			testkit.OK(t, json.Unmarshal(answers.Bytes(), &m))
			if refused := want != "" && op != "poweroff"; m.ID != uint64(id+1) || (m.Error != nil) != refused ||
				refused && !strings.HasPrefix(*m.Error, want) {
				t.Errorf("%s of a host with %q: %s", op, hello, answers.Bytes())
			}
			hello = ""
		}
		testkit.OK(t, <-served)
		_, _ = host.Close(), guest.Close()
	}
}

func TestParseResource(t *testing.T) {
	bars := parseResource("0x00000000fec00000 0x00000000fec000ff 0x0000000000040200\n" +
		"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" +
		"0x0000000380000000 0x0000000383ffffff 0x000000000014220c\nnonsense\n")
	if want := "[{0 4273995776 256 262656} {2 15032385536 67108864 1319436}]"; fmt.Sprint(bars) != want {
		t.Errorf("%v, want %s", bars, want)
	}
}

func TestGuestTextIsMadePlain(t *testing.T) {
	for in, want := range map[string]string{
		"\x1b[1;31mred\x1b[0m \x07bell\ttab\r": "red bell tab",
		"\x1b]0;title":                         "0;title",
		"grüß\xff\u009b31m":                    "grüß31m",
		"a\u202egnp.exe\u2069\u200f\u061c":     "agnp.exe",
		"one\u2028two\u2029three\x7f\u0085":    "onetwothree",
		"\u0645\u0631\u062d\u0628\u0627 - 你好":  "\u0645\u0631\u062d\u0628\u0627 - 你好",
	} {
		testkit.Equal(t, in, Plain(in), want)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	tail := Tail{Max: 4}
	for _, s := range []string{"ab", "cdef", "", "ghijklmn", "op"} {
		if n, err := tail.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	testkit.Equal(t, "the tail", string(tail.Bytes()), "mnop")
}
