package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"vnic.dev/vnic/internal/testkit"
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

// client returns a client, and the guest's end of its pipe.
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

// link serves one end of a pipe, and returns a client of the other.
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
		for range done { // waits for its end
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
	testkit.ErrorIs(t, c.Call(t.Context(), "test-echo", strings.Repeat("x", maxRequest), nil), ErrLineTooLong)
	var h Hello
	if err := c.Call(t.Context(), "hello", nil, &h); err != nil || h.Kernel == "" || h.CPUs < 1 {
		t.Errorf("%+v, %v", h, err)
	}
	testkit.OK(t, c.Call(t.Context(), "poweroff", nil, nil))
	testkit.OK(t, <-served)
	<-c.Done()
	testkit.ErrorIs(t, c.Call(t.Context(), "hello", nil, nil), ErrClosed)
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
	if err := c.Call(t.Context(), "test-echo", 1, nil); err != nil { // and the channel still works
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

// If a guest does not read, its host's call ends with the call's context.
func TestGuestThatDoesNotReadDoesNotBlockItsHost(t *testing.T) {
	c, _ := client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	testkit.ErrorIs(t, c.Call(ctx, "hello", nil, nil), context.DeadlineExceeded)
}

func TestWhatIsNoMessageIsDropped(t *testing.T) {
	c, guest := client(t)
	text := "\n\r\nnoise\n{\"half\":\n[]\n{}\n" + strings.Repeat("y", MaxLine+10) + "\n" +
		`{"id":7,"ok":1}` + "\n" + `{"id":1,"event":"unknown"}` + "\n{\"event\":\"boot\"}\r\n{\"event\":\"boot\"}\n"
	testkit.Must(io.WriteString(guest, text))(t)
	<-c.Booted()
	testkit.Equal(t, "lines dropped", c.Dropped(), 5)
	_ = guest.Close()
	<-c.Done()
	testkit.ErrorIs(t, c.Err(), ErrClosed)
}

func TestDeathOfTheAgentEndsCalls(t *testing.T) {
	c, guest := client(t)
	go func() {
		b := make([]byte, 1000)
		_, _ = guest.Read(b)
		_, _ = io.WriteString(guest, `{"id":1,"o`) // it died while writing
		_ = WriteEvent(guest, EventPanic, Panic{Status: "exit status 2", Output: "panic: x"})
		_ = guest.Close()
	}()
	err := c.Call(t.Context(), "hello", nil, nil)
	var p *PanicError
	if !errors.As(err, &p) || p.Output != "panic: x" {
		t.Errorf("got %v", err)
	}
}

func TestWriterStartsANewLineAfterABrokenOne(t *testing.T) {
	w := &shortWriter{limit: 5}
	l := &lineWriter{w: w}
	testkit.ErrorIs(t, l.send(&message{Event: "a"}, MaxLine), io.ErrShortWrite)
	w.limit = 1000
	testkit.OK(t, l.send(&message{Event: "b"}, MaxLine))
	testkit.Equal(t, "written", w.String(), "{\"eve\n{\"event\":\"b\"}\n")
}

type shortWriter struct {
	strings.Builder
	limit int
}

func (w *shortWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.limit)
	_, _ = w.Builder.Write(p[:n])
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
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
		"\u0645\u0631\u062d\u0628\u0627 - 你好":  "\u0645\u0631\u062d\u0628\u0627 - 你好", // without control characters
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

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"id\":1,\"ok\":null}\n\n{\"event\":\"boot\"}\r\n"))
	f.Add([]byte("{\"id\":1,\"error\":\"x\",\"progress\":[1]}\nhalf"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := newLineReader(strings.NewReader(string(b)))
		for {
			m, err := in.next()
			if err != nil {
				return
			}
			if m.ID == 0 && m.Event == "" {
				t.Fatalf("%+v", m)
			}
			var out strings.Builder
			testkit.OK(t, (&lineWriter{w: &out}).send(m, 2*MaxLine))
			again, err := newLineReader(strings.NewReader(out.String())).next()
			if err != nil || again.ID != m.ID || again.Event != m.Event || again.Op != m.Op {
				t.Fatalf("%+v, %+v, %v", m, again, err)
			}
		}
	})
}
